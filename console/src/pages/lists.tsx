// Who is always refused, and who always passes.
import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { useMemo, useState } from 'react';
import { all, call, segment } from '../api/client';
import { useMay } from '../api/session';
import type { ListEntry } from '../api/types';
import { instant } from '../lib/format';
import { useQuery } from '../router';
import { Icon } from '../ui/icons';
import { Ago } from '../ui/ago';
import { Badge, Button, Card, Confirm, Empty, Load, PageHead, Segmented } from '../ui/parts';
import { type Column, Table } from '../ui/table';
import { toast } from '../ui/toast';
import { bodyOf, Reason } from './reason';

const KINDS = [
  { value: 'blacklist', name: 'Denied' },
  { value: 'whitelist', name: 'Allowed' },
] as const;
type Kind = (typeof KINDS)[number]['value'];

export default function Lists() {
  const { operate } = useMay();
  const [query, setQuery] = useQuery();
  const kind: Kind = query.get('list') === 'whitelist' ? 'whitelist' : 'blacklist';
  const [find, setFind] = useState('');
  const [adding, setAdding] = useState(false);
  const [removing, setRemoving] = useState<ListEntry | null>(null);
  const list = useAsk({ queryKey: ['list', kind], queryFn: ({ signal }) => all<ListEntry>(kind, {}, signal) });
  const found = useMemo(
    () => (list.data ?? []).filter(({ identifier, reason }) => `${identifier} ${reason ?? ''}`.toLowerCase().includes(find.toLowerCase())),
    [list.data, find],
  );
  const columns: Column<ListEntry>[] = [
    { name: 'Who', cell: (entry) => <span className="two-lines"><span className="mono">{entry.identifier}</span><small>{entry.identifier_type.replace('_', ' ')}<span className="phone-only"> · {entry.reason ?? 'no reason given'}</span></small></span> },
    { name: 'Reason', minor: true, cell: (entry) => entry.reason ?? <span className="muted">none given</span> },
    { name: 'Ends', width: '8rem', cell: (entry) => <Ends entry={entry} /> },
    { name: 'Added', minor: true, width: '11rem', cell: (entry) => <span className="muted" title={instant(entry.created_at)}><Ago at={entry.created_at} /> by {entry.created_by}</span> },
    ...(operate ? [{ name: 'Actions', hidden: true, align: 'right', width: '7rem', cell: (entry) => <Button kind="quiet" icon="trash" aria-label={`Remove ${entry.identifier}`} onClick={() => setRemoving(entry)}>Remove</Button> } satisfies Column<ListEntry>] : []),
  ];
  return (
    <>
      <PageHead title="Lists" about="The deny list comes first, then the allow list, then the rules.">
        {operate && <Button kind="primary" icon="plus" onClick={() => setAdding(true)}>{kind === 'blacklist' ? 'Block somebody' : 'Allow somebody'}</Button>}
      </PageHead>
      <Card className="flush">
        <div className="toolbar">
          <label className="search">
            <span className="sr-only">Find entries</span>
            <Icon name="search" size={16} />
            <input type="search" placeholder="Find by name, address or reason" value={find} onChange={(event) => setFind(event.target.value)} />
          </label>
          <Segmented label="Which list" value={kind} options={KINDS} onChange={(value) => setQuery({ list: value === 'blacklist' ? null : value })} />
        </div>
        <Load query={list}>
          {(data) => data.length === 0 ? (
            <Empty icon="lists" title={kind === 'blacklist' ? 'Nobody is blocked' : 'Nobody is let through unseen'}>
              <p>{kind === 'blacklist' ? 'Who is put here is refused at once, with status 403.' : 'Who is put here passes, and nothing is counted.'}</p>
            </Empty>
          ) : found.length === 0 ? <Empty title="No entry fits" /> : <Table label={kind === 'blacklist' ? 'Denied' : 'Allowed'} columns={columns} rows={found} id={(entry) => entry.id} />}
        </Load>
      </Card>
      {adding && <Reason kind={kind} title={kind === 'blacklist' ? 'Block somebody' : 'Allow somebody'} verb={kind === 'blacklist' ? 'Block' : 'Allow'} onClose={() => setAdding(false)} />}
      {removing && <Remove kind={kind} entry={removing} onClose={() => setRemoving(null)} />}
    </>
  );
}

function Ends({ entry }: { entry: ListEntry }) {
  if (entry.is_expired) return <Badge>ended</Badge>;
  return entry.expires_at ? <span title={instant(entry.expires_at)}><Ago at={entry.expires_at} /></span> : <span className="muted">never</span>;
}

function Remove({ kind, entry, onClose }: { kind: Kind; entry: ListEntry; onClose: () => void }) {
  const queries = useQueryClient();
  const remove = useMutation({
    mutationFn: () => call('DELETE', `${kind}/${segment(entry.id)}`),
    onSuccess: () => {
      toast(`${entry.identifier} is off the list.`, 'good', () => call('POST', kind, { body: bodyOf(entry) }).then(() => queries.invalidateQueries()));
      void queries.invalidateQueries({ queryKey: ['list'] });
      onClose();
    },
  });
  return (
    <Confirm title={`Remove ${entry.identifier}?`} verb="Remove" busy={remove.isPending} error={remove.error} onConfirm={() => remove.mutate()} onClose={onClose}>
      <p>From now on the rules decide about it again.</p>
    </Confirm>
  );
}
