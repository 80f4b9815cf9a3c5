// Somebody: all its limits now, and what can be done about them.
import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { type SyntheticEvent, useState } from 'react';
import { all, ApiError, call, get, segment } from '../api/client';
import { useMay } from '../api/session';
import type { ClientTier, Decided, Grant, Limit, Page, Tier, Usage } from '../api/types';
import { count, instant, span } from '../lib/format';
import { Link, useQuery } from '../router';
import { Ago } from '../ui/ago';
import { Badge, Button, Card, Confirm, Dialog, Empty, Fault, Field, Load, Meter, PageHead, sentence } from '../ui/parts';
import { toast } from '../ui/toast';
import { Reason } from './reason';

const TYPES = [
  { value: 'user_id', name: 'User', example: 'ann' },
  { value: 'tenant_id', name: 'Tenant', example: 'acme' },
  { value: 'api_key', name: 'API key', example: 'key-1' },
  { value: 'ip', name: 'IP address', example: '203.0.113.9' },
] as const;
type Type = (typeof TYPES)[number]['value'];

interface Client {
  type: Type;
  id: string;
  model: string;
}

const LOOK_MS = 3_000;
/** Attributes of the audit log that name a client of this type. */
const IN_AUDIT: Record<Type, string | null> = { user_id: 'user_id', tenant_id: 'tenant_id', ip: 'ip_address', api_key: null };

export default function Clients() {
  const { isTenant } = useMay();
  const [query, setQuery] = useQuery();
  const type = TYPES.find((one) => one.value === query.get('type'))?.value ?? 'user_id';
  const id = query.get('id') ?? '';
  const client: Client = { type, id, model: query.get('model') ?? '' };
  return (
    <>
      <PageHead title="Clients" about="Find somebody: what they have used, and what they may still do." />
      <Finder key={`${type}:${id}:${client.model}`} client={client} types={TYPES.filter((one) => !(isTenant && one.value === 'tenant_id'))} onFind={(next) => setQuery({ type: next.type, id: next.id, model: next.model })} />
      {id === '' ? (
        <Card>
          <Empty icon="clients" title="Who is it?">
            <p>Type a user, tenant, API key or address. Add a model where limits are counted for each.</p>
          </Empty>
        </Card>
      ) : (
        <Found key={`${type}:${id}`} client={client} />
      )}
    </>
  );
}

function Finder({ client, types, onFind }: { client: Client; types: readonly (typeof TYPES)[number][]; onFind: (client: Client) => void }) {
  const [typed, setTyped] = useState(client);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    onFind({ ...typed, id: typed.id.trim(), model: typed.model.trim() });
  };
  const example = types.find((one) => one.value === typed.type)?.example;
  return (
    <Card>
      <form className="finder" onSubmit={submit}>
        <Field label="Kind">
          {(props) => (
            <select {...props} value={typed.type} onChange={(event) => setTyped({ ...typed, type: event.target.value as Type })}>
              {types.map(({ value, name }) => <option key={value} value={value}>{name}</option>)}
            </select>
          )}
        </Field>
        <Field label="Name">{(props) => <input {...props} value={typed.id} placeholder={example} spellCheck={false} autoComplete="off" maxLength={256} onChange={(event) => setTyped({ ...typed, id: event.target.value })} />}</Field>
        <Field label="Model, if any">{(props) => <input {...props} value={typed.model} placeholder="gpt4" spellCheck={false} maxLength={256} onChange={(event) => setTyped({ ...typed, model: event.target.value })} />}</Field>
        <Button type="submit" kind="primary" icon="search" disabled={typed.id.trim() === ''}>Find</Button>
      </form>
    </Card>
  );
}

function Found({ client }: { client: Client }) {
  const may = useMay();
  const { type, id, model } = client;
  const usage = useAsk({
    queryKey: ['usage', type, id, model],
    queryFn: ({ signal }) => get<Usage>(`usage/${type}/${segment(id)}`, { model_id: model }, signal),
    refetchInterval: LOOK_MS,
  });
  const [doing, setDoing] = useState<'reset' | 'block' | 'allow' | 'grant' | null>(null);
  const close = () => setDoing(null);
  return (
    <>
      <Load query={usage}>
        {(data) => (
          <Card
            title={<span className="mono">{data.identifier}</span>}
            about={<ClientWords usage={data} />}
            actions={
              <>
                {may.operate && <Button icon="plus" onClick={() => setDoing('grant')}>Extra quota</Button>}
                {may.operate && <Button icon="check" onClick={() => setDoing('allow')}>Allow list</Button>}
                {may.operate && <Button icon="lists" onClick={() => setDoing('block')}>Block</Button>}
                {may.reset && <Button icon="reset" onClick={() => setDoing('reset')} disabled={data.limits.length === 0}>Reset</Button>}
              </>
            }
          >
            {data.limits.length === 0 ? <Empty icon="rules" title="No limit applies"><p>No rule counts this client by what is given. Rules counted by model need one above.</p></Empty> : <LimitList limits={data.limits} />}
          </Card>
        )}
      </Load>
      <div className="grid two">
        {may.view && type !== 'ip' && usage.data && <TierCard client={client} known={usage.data.identifier} />}
        {may.view && usage.data && <Grants client={client} known={usage.data.identifier} />}
      </div>
      {IN_AUDIT[type] && <Lately client={client} />}
      {doing === 'reset' && <Reset client={client} onClose={close} />}
      {doing === 'block' && <Reason kind="blacklist" title={`Block ${id}?`} verb="Block" fixed={{ identifier_type: type, identifier: id }} onClose={close} />}
      {doing === 'allow' && <Reason kind="whitelist" title={`Always allow ${id}?`} verb="Allow" fixed={{ identifier_type: type, identifier: id }} onClose={close} />}
      {doing === 'grant' && <GiveGrant client={client} rules={[...new Set((usage.data?.limits ?? []).map((one) => one.rule_id))]} onClose={close} />}
    </>
  );
}

function ClientWords({ usage }: { usage: Usage }) {
  return (
    <>
      {usage.allowed === false && <Badge tone="bad">{usage.reason}</Badge>}
      {usage.allowed === true && <Badge tone="good">{usage.reason}</Badge>} {usage.tier && <>plan {usage.tier}</>}
    </>
  );
}

export function LimitList({ limits }: { limits: Limit[] }) {
  return (
    <ul className="limits">
      {limits.map((limit, index) => (
        <li key={index}>
          <div className="limit-head">
            <span>
              {limit.rule_id === 'default' ? 'default' : <Link href={`/rules/${segment(limit.rule_id)}`}>{limit.rule_id}</Link>}
              {limit.scope !== limit.rule_id && <small> {limit.scope}</small>}
            </span>
            <b>{count(limit.current)} / {count(limit.limit)}</b>
          </div>
          <Meter used={limit.current} limit={limit.limit} label={`${limit.rule_id}: used`} />
          <small>{count(limit.remaining)} left per {span(limit.window_seconds, 'named')} · resets <Ago at={limit.reset_at} /></small>
        </li>
      ))}
    </ul>
  );
}

function Reset({ client, onClose }: { client: Client; onClose: () => void }) {
  const queries = useQueryClient();
  const reset = useMutation({
    mutationFn: () => call<{ reset: string[] }>('POST', `usage/${client.type}/${segment(client.id)}/reset`, { query: { model_id: client.model } }),
    onSuccess: ({ reset: rules }) => {
      toast(rules.length === 0 ? 'Nothing was counted.' : `Reset: ${rules.join(', ')}.`);
      void queries.invalidateQueries({ queryKey: ['usage'] });
      onClose();
    },
  });
  return (
    <Confirm title={`Reset ${client.id}?`} verb="Reset" busy={reset.isPending} error={reset.error} onConfirm={() => reset.mutate()} onClose={onClose}>
      <p>All counters of this client that you see are reset to zero.</p>
    </Confirm>
  );
}

/** `known` is what the server calls the client: of an API key it keeps only a hash. */
function TierCard({ client, known }: { client: Client; known: string }) {
  const { operate, isFromFile } = useMay();
  const queries = useQueryClient();
  const tiers = useAsk({ queryKey: ['tiers'], queryFn: ({ signal }) => all<Tier>('tiers', {}, signal) });
  const entryId = `${client.type}:${known}`;
  const own = useAsk({
    queryKey: ['client-tier', entryId],
    queryFn: async ({ signal }) => {
      try {
        return await get<ClientTier>(`client-tiers/${segment(entryId)}`, {}, signal);
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
      }
    },
  });
  const change = useMutation({
    mutationFn: (tier: string) =>
      tier === '' ? call('DELETE', `client-tiers/${segment(entryId)}`) : call('POST', 'client-tiers', { body: { identifier_type: client.type, identifier: client.id, tier } }),
    onSuccess: () => {
      toast('The plan is changed.');
      void queries.invalidateQueries({ queryKey: ['client-tier'] });
      void queries.invalidateQueries({ queryKey: ['usage'] });
    },
    onError: (error) => toast(sentence(error), 'bad'),
  });
  return (
    <Card title="Plan">
      <Load query={tiers} rows={1}>
        {(list) =>
          list.length === 0 ? (
            <p className="muted">{isFromFile ? 'The plans are in the file of rules.' : <>There are no plans yet. <Link href="/tiers">Make some</Link>.</>}</p>
          ) : (
            <Field label="This client has">
              {(props) => (
                <select {...props} disabled={!operate || change.isPending || own.data === undefined} value={own.data?.tier ?? ''} onChange={(event) => change.mutate(event.target.value)}>
                  <option value="">{`the default (${list.find((one) => one.is_default)?.name ?? 'none'})`}</option>
                  {list.map(({ name }) => <option key={name} value={name}>{name}</option>)}
                </select>
              )}
            </Field>
          )
        }
      </Load>
    </Card>
  );
}

function Grants({ client, known }: { client: Client; known: string }) {
  const { operate } = useMay();
  const queries = useQueryClient();
  const grants = useAsk({ queryKey: ['grants'], queryFn: ({ signal }) => all<Grant>('grants', {}, signal) });
  const end = useMutation({
    mutationFn: (id: string) => call('DELETE', `grants/${segment(id)}`),
    onSuccess: () => toast('The extra quota has ended.'),
    onError: (error) => toast(sentence(error), 'bad'),
    onSettled: () => queries.invalidateQueries({ queryKey: ['grants'] }),
  });
  return (
    <Card title="Extra quota">
      <Load query={grants} rows={1}>
        {(list) => {
          const own = list.filter((one) => one.identifier_type === client.type && one.identifier === known && !one.is_expired);
          if (own.length === 0) return <p className="muted">None.</p>;
          return (
            <ul className="lines">
              {own.map((grant) => (
                <li key={grant.grant_id}>
                  <span><b>+{count(grant.extra)}</b> on {grant.rule_id} <small>until {instant(grant.expires_at)}</small></span>
                  {operate && <Button kind="quiet" icon="trash" aria-label={`End the extra quota on ${grant.rule_id}`} onClick={() => end.mutate(grant.grant_id)}>End</Button>}
                </li>
              ))}
            </ul>
          );
        }}
      </Load>
    </Card>
  );
}

const DAY_MS = 86_400_000;

function GiveGrant({ client, rules, onClose }: { client: Client; rules: string[]; onClose: () => void }) {
  const queries = useQueryClient();
  const [form, setForm] = useState({ rule_id: rules[0] ?? '', extra: '100', days: '7', reason: '' });
  const give = useMutation({
    mutationFn: () =>
      call('POST', 'grants', {
        body: {
          rule_id: form.rule_id, extra: Number(form.extra), identifier_type: client.type, identifier: client.id,
          expires_at: new Date(Date.now() + Number(form.days) * DAY_MS).toISOString(), ...(form.reason ? { reason: form.reason } : {}),
        },
      }),
    onSuccess: () => {
      toast(`${client.id} has ${form.extra} more on ${form.rule_id}.`);
      void queries.invalidateQueries();
      onClose();
    },
  });
  const set = (name: keyof typeof form) => (event: { target: { value: string } }) => setForm({ ...form, [name]: event.target.value });
  return (
    <Dialog title={`Extra quota for ${client.id}`} onClose={onClose}>
      <form className="stack" onSubmit={(event) => { event.preventDefault(); give.mutate(); }}>
        <Field label="Rule">{(props) => rules.length > 0 ? <select {...props} value={form.rule_id} onChange={set('rule_id')}>{rules.map((one) => <option key={one}>{one}</option>)}</select> : <input {...props} value={form.rule_id} onChange={set('rule_id')} />}</Field>
        <div className="fields">
          <Field label="How much more">{(props) => <input {...props} inputMode="numeric" value={form.extra} onChange={set('extra')} />}</Field>
          <Field label="For how many days">{(props) => <input {...props} inputMode="numeric" value={form.days} onChange={set('days')} />}</Field>
        </div>
        <Field label="Why">{(props) => <input {...props} value={form.reason} placeholder="launch week" onChange={set('reason')} />}</Field>
        {give.error && <Fault error={give.error} />}
        <div className="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" busy={give.isPending} disabled={!(Number(form.extra) > 0) || !(Number(form.days) > 0) || form.rule_id === ''}>Give</Button>
        </div>
      </form>
    </Dialog>
  );
}

/** What was refused lately. */
function Lately({ client }: { client: Client }) {
  const name = IN_AUDIT[client.type] ?? '';
  const lately = useAsk({
    queryKey: ['audit', 'decisions', client.type, client.id],
    queryFn: ({ signal }) => get<Page<Decided>>('audit', { kind: 'decisions', action: 'rejected', [name]: client.id, limit: 10 }, signal),
    refetchInterval: LOOK_MS,
  });
  return (
    <Card title="Refused lately">
      <Load query={lately} rows={2}>
        {({ items }) =>
          items.length === 0 ? <p className="muted">Nothing of this client was refused.</p> : (
            <ul className="lines">
              {items.map((one) => (
                <li key={one.id}>
                  <span><Badge tone="bad">{one.reason}</Badge> {one.rule_id} <small>{[one.method, one.endpoint, one.model_id].filter(Boolean).join(' ')}</small></span>
                  <small title={instant(one.timestamp)}><Ago at={one.timestamp} /></small>
                </li>
              ))}
            </ul>
          )
        }
      </Load>
    </Card>
  );
}
