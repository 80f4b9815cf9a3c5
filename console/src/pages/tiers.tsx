// Plans, and who has which.
import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { all, call, get, segment } from '../api/client';
import { useMay } from '../api/session';
import type { ClientTier, Page, Tier } from '../api/types';
import { Link, useQuery } from '../router';
import { Badge, Button, Card, Confirm, Dialog, Empty, Fault, Field, Load, PageHead, sentence } from '../ui/parts';
import { type Column, Table } from '../ui/table';
import { toast } from '../ui/toast';

export default function Tiers() {
  const { operate } = useMay();
  const [editing, setEditing] = useState<Tier | 'new' | null>(null);
  const [ending, setEnding] = useState<Tier | null>(null);
  const tiers = useAsk({ queryKey: ['tiers'], queryFn: ({ signal }) => all<Tier>('tiers', {}, signal) });
  const columns: Column<Tier>[] = [
    { name: 'Plan', cell: ({ name, is_default: isDefault }) => <><b>{name}</b> {isDefault && <Badge tone="info">default</Badge>}</> },
    { name: 'What it is', cell: ({ description }) => description ?? <span className="muted">–</span> },
    ...(operate
      ? [{ name: 'Actions', hidden: true, pair: true, align: 'right', width: '12rem', cell: (tier) => (
          <span className="actions end">
            <Button kind="quiet" icon="rules" aria-label={`Edit ${tier.name}`} onClick={() => setEditing(tier)}>Edit</Button>
            <Button kind="quiet" icon="trash" aria-label={`Delete ${tier.name}`} onClick={() => setEnding(tier)}>Delete</Button>
          </span>
        ) } satisfies Column<Tier>]
      : []),
  ];
  return (
    <>
      <PageHead title="Plans" about="Rules can give each plan a limit of its own.">
        {operate && <Button kind="primary" icon="plus" onClick={() => setEditing('new')}>New plan</Button>}
      </PageHead>
      <Card className="flush">
        <Load query={tiers}>
          {(list) => list.length === 0 ? <Empty icon="tiers" title="No plans yet"><p>Such as free, pro and enterprise. One can be the default of everyone who has no other.</p></Empty> : <Table label="Plans" columns={columns} rows={list} id={(tier) => tier.name} />}
        </Load>
      </Card>
      <Holders tiers={tiers.data ?? []} />
      {editing && <Edit tier={editing === 'new' ? null : editing} onClose={() => setEditing(null)} />}
      {ending && <End tier={ending} onClose={() => setEnding(null)} />}
    </>
  );
}

function Edit({ tier, onClose }: { tier: Tier | null; onClose: () => void }) {
  const queries = useQueryClient();
  const [form, setForm] = useState({ name: tier?.name ?? '', description: tier?.description ?? '', is_default: tier?.is_default ?? false });
  const save = useMutation({
    mutationFn: () =>
      call('POST', 'tiers', {
        body: { name: form.name.trim(), ...(form.description ? { description: form.description } : {}), is_default: form.is_default },
        ifVersion: tier?.version ?? 0,
      }),
    onSuccess: () => {
      toast(`The plan ${form.name} is saved.`);
      void queries.invalidateQueries({ queryKey: ['tiers'] });
      onClose();
    },
  });
  return (
    <Dialog title={tier ? `Plan ${tier.name}` : 'New plan'} onClose={onClose}>
      <form className="stack" onSubmit={(event) => { event.preventDefault(); save.mutate(); }}>
        <Field label="Name">{(props) => <input {...props} value={form.name} readOnly={tier !== null} placeholder="pro" onChange={(event) => setForm({ ...form, name: event.target.value })} />}</Field>
        <Field label="What it is">{(props) => <input {...props} value={form.description} placeholder="Paying customers" onChange={(event) => setForm({ ...form, description: event.target.value })} />}</Field>
        <label className="check"><input type="checkbox" checked={form.is_default} onChange={(event) => setForm({ ...form, is_default: event.target.checked })} /> The default of everyone who has no other</label>
        {save.error && <Fault error={save.error} />}
        <div className="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" busy={save.isPending} disabled={form.name.trim() === ''}>Save</Button>
        </div>
      </form>
    </Dialog>
  );
}

function End({ tier, onClose }: { tier: Tier; onClose: () => void }) {
  const queries = useQueryClient();
  const end = useMutation({
    mutationFn: () => call('DELETE', `tiers/${segment(tier.name)}`, { ifVersion: tier.version }),
    onSuccess: () => {
      toast(`The plan ${tier.name} is gone.`);
      void queries.invalidateQueries({ queryKey: ['tiers'] });
      onClose();
    },
  });
  return (
    <Confirm title={`Delete the plan ${tier.name}?`} verb="Delete" busy={end.isPending} error={end.error} onConfirm={() => end.mutate()} onClose={onClose}>
      <p>A plan that clients have, or that rules name, stays.</p>
    </Confirm>
  );
}

/** There may be millions: a page of them, and a way to find one. */
function Holders({ tiers }: { tiers: Tier[] }) {
  const { operate } = useMay();
  const queries = useQueryClient();
  const [query, setQuery] = useQuery();
  const [cursor, setCursor] = useState<string | null>(null);
  const tier = query.get('tier') ?? '';
  const prefix = query.get('find') ?? '';
  const holders = useAsk({
    queryKey: ['client-tiers', tier, prefix, cursor],
    queryFn: ({ signal }) => get<Page<ClientTier>>('client-tiers', { tier, prefix, cursor, limit: 50 }, signal),
  });
  const end = useMutation({
    mutationFn: (entry: ClientTier) => call('DELETE', `client-tiers/${segment(entry.id)}`),
    onSuccess: () => toast('Back on the default plan.'),
    onError: (error) => toast(sentence(error), 'bad'),
    onSettled: () => queries.invalidateQueries({ queryKey: ['client-tiers'] }),
  });
  const columns: Column<ClientTier>[] = [
    { name: 'Client', cell: (entry) => <span className="two-lines"><Link href={`/clients?type=${entry.identifier_type}&id=${encodeURIComponent(entry.identifier)}`}>{entry.identifier}</Link><small>{entry.identifier_type.replace('_', ' ')}</small></span> },
    { name: 'Plan', cell: (entry) => <Badge>{entry.tier}</Badge> },
    ...(operate ? [{ name: 'Actions', hidden: true, align: 'right', width: '8rem', cell: (entry) => <Button kind="quiet" icon="trash" aria-label={`Remove the plan of ${entry.identifier}`} onClick={() => end.mutate(entry)}>Remove</Button> } satisfies Column<ClientTier>] : []),
  ];
  return (
    <Card className="flush" title="Who has which" about="Clients with a plan of their own. Find a client to change its plan.">
      <div className="toolbar">
        <label className="search">
          <span className="sr-only">Find by beginning</span>
          <input type="search" placeholder="Begins with, such as tenant_id:ac" value={prefix} onChange={(event) => { setCursor(null); setQuery({ find: event.target.value }); }} />
        </label>
        <label className="inline">
          <span>Plan</span>
          <select value={tier} onChange={(event) => { setCursor(null); setQuery({ tier: event.target.value }); }}>
            <option value="">any</option>
            {tiers.map(({ name }) => <option key={name}>{name}</option>)}
          </select>
        </label>
      </div>
      <Load query={holders}>
        {({ items, next_cursor: next }) => (
          <>
            {items.length === 0 ? <Empty icon="clients" title="No client has a plan of its own" /> : <Table label="Clients with a plan" columns={columns} rows={items} id={(entry) => entry.id} />}
            {(next ?? cursor) && (
              <div className="pager">
                <Button disabled={cursor === null} onClick={() => setCursor(null)}>First</Button>
                <Button disabled={next === null} onClick={() => setCursor(next)}>Next</Button>
              </div>
            )}
          </>
        )}
      </Load>
    </Card>
  );
}
