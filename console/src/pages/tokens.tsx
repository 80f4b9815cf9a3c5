// Who may use the admin API and this console.
import { type QueryClient, useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { all, call, renew, segment } from '../api/client';
import { useIdentity } from '../api/session';
import type { Secret, Token } from '../api/types';
import { instant } from '../lib/format';
import { Ago } from '../ui/ago';
import { Badge, Button, Card, Confirm, Dialog, Fault, Field, Load, PageHead } from '../ui/parts';
import { showSecret } from '../ui/secret';
import { type Column, Table } from '../ui/table';
import { toast } from '../ui/toast';

const ROLES = [
  ['viewer', 'Viewer: sees everything but tokens'],
  ['operator', 'Operator: changes rules, lists, plans; resets counters'],
  ['admin', 'Admin: tokens, too'],
  ['tenant_admin', 'Tenant admin: rules and usage of one tenant'],
] as const;
const DAY_MS = 86_400_000;
/** A hundred years: longer is never. */
const MAX_DAYS = 36_500;
/** Whether a person signed in through a provider: there is no secret that anybody could rotate. */
const isSession = ({ token_id: id }: Token) => id.startsWith('session_');
type Doing = { what: 'rotate' | 'revoke'; token: Token };

export default function Tokens() {
  const { token_id: own } = useIdentity();
  const [making, setMaking] = useState(false);
  const [doing, setDoing] = useState<Doing | null>(null);
  const tokens = useAsk({ queryKey: ['tokens'], queryFn: ({ signal }) => all<Token>('tokens', {}, signal) });
  const tone = { active: 'good', expired: 'neutral', revoked: 'neutral' } as const;
  const columns: Column<Token>[] = [
    { name: 'Whose', cell: (token) => <span className="two-lines"><b>{token.name} {isSession(token) && <Badge tone="neutral">session</Badge>} {token.token_id === own && <Badge tone="info">yours</Badge>}</b><small className="mono">{token.token_id}</small></span> },
    { name: 'Role', cell: (token) => <>{token.role.replace('_', ' ')}{token.tenant_id && <small> {token.tenant_id}</small>}</> },
    { name: 'State', minor: true, cell: (token) => <Badge tone={tone[token.status]}>{token.status}</Badge> },
    { name: 'Ends', minor: true, cell: ({ expires_at: ends }) => ends ? <span title={instant(ends)}><Ago at={ends} /></span> : <span className="muted">never</span> },
    { name: 'Made', minor: true, cell: (token) => <span className="muted" title={instant(token.created_at)}><Ago at={token.created_at} /> by {token.created_by}</span> },
    { name: 'Actions', hidden: true, pair: true, align: 'right', width: '13rem', cell: (token) => token.status === 'active' && (
      <span className="actions end">
        {!isSession(token) && <Button kind="quiet" icon="reset" aria-label={`Rotate ${token.name}`} onClick={() => setDoing({ what: 'rotate', token })}>Rotate</Button>}
        <Button kind="quiet" icon="trash" aria-label={`Revoke ${token.name}`} onClick={() => setDoing({ what: 'revoke', token })}>Revoke</Button>
      </span>
    ) },
  ];
  return (
    <>
      <PageHead title="Tokens" about="Secrets are shown once; only their hashes are kept.">
        <Button kind="primary" icon="plus" onClick={() => setMaking(true)}>New token</Button>
      </PageHead>
      <Card className="flush">
        <Load query={tokens}>{(list) => <Table label="Tokens" columns={columns} rows={list} id={(token) => token.token_id} />}</Load>
      </Card>
      {making && <Make onClose={() => setMaking(false)} onMade={(made) => { setMaking(false); showToken(made); }} />}
      {doing && <Do doing={doing} isOwn={doing.token.token_id === own} onClose={() => setDoing(null)} />}
    </>
  );
}

function showToken({ name, token }: Secret) {
  showSecret({ title: `The token of ${name}`, secret: token });
}

function Make({ onClose, onMade }: { onClose: () => void; onMade: (secret: Secret) => void }) {
  const queries = useQueryClient();
  const [form, setForm] = useState({ name: '', role: 'viewer', tenant_id: '', days: '' });
  const isTenant = form.role === 'tenant_admin';
  const days = form.days.trim();
  const isDays = days === '' || (/^\d+$/.test(days) && Number(days) >= 1 && Number(days) <= MAX_DAYS);
  const wrongDays = isDays ? undefined : `A whole number of 1 to ${String(MAX_DAYS)}.`;
  const make = useMutation({
    mutationFn: () =>
      call<Secret>('POST', 'tokens', {
        body: {
          name: form.name.trim(), role: form.role,
          ...(isTenant ? { tenant_id: form.tenant_id.trim() } : {}),
          ...(days ? { expires_at: new Date(Date.now() + Number(days) * DAY_MS).toISOString() } : {}),
        },
      }),
    onSuccess: (secret) => {
      void queries.invalidateQueries({ queryKey: ['tokens'] });
      onMade(secret);
    },
  });
  const set = (name: keyof typeof form) => (event: { target: { value: string } }) => setForm({ ...form, [name]: event.target.value });
  return (
    <Dialog title="New token" onClose={onClose}>
      <form className="stack" onSubmit={(event) => { event.preventDefault(); make.mutate(); }}>
        <Field label="Whose">{(props) => <input {...props} value={form.name} placeholder="dashboard" maxLength={256} onChange={set('name')} />}</Field>
        <Field label="Role">{(props) => <select {...props} value={form.role} onChange={set('role')}>{ROLES.map(([value, name]) => <option key={value} value={value}>{name}</option>)}</select>}</Field>
        {isTenant && <Field label="Tenant">{(props) => <input {...props} value={form.tenant_id} placeholder="acme" maxLength={256} onChange={set('tenant_id')} />}</Field>}
        <Field label="Ends after days" hint="Empty: it ends when it is revoked" fault={wrongDays}>{(props) => <input {...props} inputMode="numeric" value={form.days} onChange={set('days')} />}</Field>
        {make.error && <Fault error={make.error} />}
        <div className="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" busy={make.isPending} disabled={!isDays || form.name.trim() === '' || (isTenant && form.tenant_id.trim() === '')}>Make</Button>
        </div>
      </form>
    </Dialog>
  );
}

function Do({ doing: { what, token }, isOwn, onClose }: { doing: Doing; isOwn: boolean; onClose: () => void }) {
  const queries = useQueryClient();
  const isRotate = what === 'rotate';
  const path = `tokens/${segment(token.token_id)}`;
  const act = useMutation({
    mutationFn: async () => {
      if (!isRotate) await call('DELETE', path);
      else if (!isOwn) showToken(await call<Secret>('POST', `${path}/rotate`));
      else await rotateOwn(queries, `${path}/rotate`);
    },
    onSuccess: () => {
      void queries.invalidateQueries({ predicate: ({ queryKey }) => (isOwn ? queryKey[0] !== 'session' : queryKey[0] === 'tokens') });
      onClose();
      if (!isRotate) toast(`The token of ${token.name} has ended.`);
    },
  });
  return (
    <Confirm title={isRotate ? `A new secret for ${token.name}?` : `End the token of ${token.name}?`} verb={isRotate ? 'Rotate' : 'Revoke'} busy={act.isPending} error={act.error} onConfirm={() => act.mutate()} onClose={onClose}>
      <p>{isRotate ? `The old secret ends at once.${isOwn ? ' It is yours: you stay signed in, with the new one.' : ''}` : 'It ends at once, and cannot come back.'}</p>
    </Confirm>
  );
}

/** The page goes on with the new secret, or asks for it where signing in fails. */
async function rotateOwn(queries: QueryClient, path: string) {
  const kept: Secret[] = [];
  const keep = (secret: Secret) => {
    kept.push(secret);
    showToken(secret);
  };
  try {
    queries.setQueryData(['session'], await renew(path, keep));
  } catch (error) {
    if (kept.length === 0) throw error;
    queries.setQueryData(['session'], null);
  }
}
