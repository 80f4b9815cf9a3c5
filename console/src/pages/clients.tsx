// Somebody: all its limits now, and what can be done about them.
import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { type ReactNode, type SyntheticEvent, useState } from 'react';
import { all, ApiError, call, get, segment } from '../api/client';
import { useMay } from '../api/session';
import type { ClientLimit, ClientPage, ClientTier, Decided, Grant, Page, Tier, VirtualKey } from '../api/types';
import { useUnit } from '../api/units';
import { count, instant } from '../lib/format';
import { budgetShort, limitTexts } from '../lib/key';
import { money } from '../lib/money';
import { Link, useQuery } from '../router';
import { Ago } from '../ui/ago';
import { Badge, Button, Card, Empty, Field, Load, PageHead, sentence } from '../ui/parts';
import { Table } from '../ui/table';
import { toast } from '../ui/toast';
import { GiveGrant, Reset, type ResetStep } from './acts';
import { ClientChart } from './clientChart';
import { Result, Sentence } from './decisions';
import { LimitList } from './limits';
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
  const page = useAsk({
    queryKey: ['client', type, id, model],
    queryFn: ({ signal }) => get<ClientPage>(`clients/${type}/${segment(id)}`, { model_id: model }, signal),
    refetchInterval: LOOK_MS,
  });
  const [doing, setDoing] = useState<'reset' | 'block' | 'allow' | 'grant' | null>(null);
  const close = () => setDoing(null);
  const data = page.data;
  const key = useVirtualKey(client);
  const own = data?.limits.filter((limit) => isOwn(limit, client, data)) ?? [];
  const granted = [...new Set([...(data?.refused_by && own.some((one) => one.rule_id === data.refused_by) ? [data.refused_by] : []), ...own.map((one) => one.rule_id)])];
  return (
    <>
      <Load query={page}>
        {(found) => (
          <Card
            title={<span className="mono">{found.identifier}</span>}
            about={<>{key && <>Virtual key <Link href={`/keys/${segment(key.id)}`}>{key.name}</Link> · </>}<ClientWords page={found} /></>}
            actions={
              <>
                {may.operate && <Button icon="plus" onClick={() => setDoing('grant')} disabled={own.length === 0}>Extra quota</Button>}
                {may.operate && <Button icon="check" onClick={() => setDoing('allow')}>Allow list</Button>}
                {may.operate && <Button icon="lists" onClick={() => setDoing('block')}>Block</Button>}
                {may.reset && <Button icon="reset" onClick={() => setDoing('reset')} disabled={own.length === 0}>Reset</Button>}
              </>
            }
          >
            {found.limits.length === 0 ? <Empty icon="rules" title="No limit applies"><p>No rule counts this client by its name alone, and none of its requests is in the log of decisions. Rules counted by model need one above.</p></Empty> : <LimitList limits={bySharing(found.limits)} own={type === 'api_key' ? found.identifier : id} requests={found.requests} currency={key?.budget?.currency} client={id} />}
          </Card>
        )}
      </Load>
      <div className="grid two">
        {may.view && type !== 'ip' && data && <TierCard client={client} known={data.identifier} />}
        {may.view && data && <Grants client={client} known={data.identifier} />}
      </div>
      {(type === 'user_id' || type === 'tenant_id') && <KeysOf field={type === 'user_id' ? 'owner' : 'tenant_id'} id={id} />}
      {data && <ClientChart search={searchOf(client, data.identifier)} tenant={type === 'tenant_id' && !may.isTenant ? id : null} />}
      {data && data.requests.length > 0 && <Requests requests={data.requests} />}
      {data && <Decisions search={searchOf(client, data.identifier)} />}
      {doing === 'reset' && data && <Reset title={`Reset ${id}?`} rules={[...new Set(own.map((one) => one.rule_id))]} steps={stepsOf(own, client, data)} onClose={close} />}
      {doing === 'block' && <Reason kind="blacklist" title={`Block ${id}?`} verb="Block" choices={[{ type, id }]} onClose={close} />}
      {doing === 'allow' && <Reason kind="whitelist" title={`Always allow ${id}?`} verb="Allow" choices={[{ type, id }]} onClose={close} />}
      {doing === 'grant' && <GiveGrant clients={[{ type, id }]} rules={granted} onClose={close} />}
    </>
  );
}

/** The virtual key that is looked at, if it is one. */
function useVirtualKey({ type, id }: Client): VirtualKey | undefined {
  const key = useAsk({ queryKey: ['key', id], queryFn: ({ signal }) => get<VirtualKey>(`keys/${segment(id)}`, {}, signal), enabled: type === 'api_key' && id.startsWith('key_'), retry: false });
  return key.data;
}

/** Keys of a client that are listed; the page of keys has all. */
const MAX_KEYS = 5;

/** The virtual keys that belong to a user or a tenant; nothing if there are none. */
function KeysOf({ field, id }: { field: 'owner' | 'tenant_id'; id: string }) {
  const keys = useAsk({ queryKey: ['keys', field, id], queryFn: ({ signal }) => get<Page<VirtualKey>>('keys', { [field]: id, limit: MAX_KEYS }, signal) });
  const items = keys.data?.items ?? [];
  if (items.length === 0) return null;
  return (
    <Card title="Virtual keys" actions={<Link href={`/keys?find=${encodeURIComponent(id)}`}>All of them</Link>}>
      <ul className="lines">
        {items.map((key) => (
          <li key={key.id}>
            <span><Link href={`/keys/${segment(key.id)}`}>{key.name}</Link> {key.status !== 'active' && <Badge>{key.status}</Badge>} <small>{[...(key.budget ? [budgetShort(key.budget)] : []), ...limitTexts(key)].join(' · ')}</small></span>
            <small className="mono">{key.id}</small>
          </li>
        ))}
      </ul>
    </Card>
  );
}

/** Whether the counter is this client's, and not one that it shares with others. */
function isOwn(limit: ClientLimit, { type, id }: Client, { identifier }: ClientPage): boolean {
  return type === 'api_key' ? limit.key['api_key_id'] === identifier : limit.key[type] === id;
}

const share = ({ current, limit }: ClientLimit) => (limit <= 0 ? 1 : current / limit);

/** What will be hit next comes first. */
function bySharing(limits: ClientLimit[]): ClientLimit[] {
  return [...limits].sort((a, b) => share(b) - share(a));
}

/** Each counter is reset by a request that meets it. */
function stepsOf(limits: ClientLimit[], { type, id, model }: Client, { requests }: ClientPage): ResetStep[] {
  const steps = limits.map((limit): ResetStep => {
    const met = limit.request === null ? undefined : requests[limit.request];
    const known: Record<string, string | null | undefined> = met ? { user_id: met.user_id, tenant_id: met.tenant_id, ip: met.ip, model_id: met.model_id, endpoint: met.endpoint, method: met.method } : { model_id: model };
    const given = Object.entries(known).filter((pair): pair is [string, string] => pair[0] !== type && pair[1] !== null && pair[1] !== undefined && pair[1] !== '');
    return { type, id, query: { ...Object.fromEntries(given), rule_id: limit.rule_id } };
  });
  return steps.filter((step, index) => steps.findIndex((one) => JSON.stringify(one) === JSON.stringify(step)) === index);
}

function ClientWords({ page: { listed, requests, tier, refused_by: by } }: { page: ClientPage }) {
  const [latest] = requests;
  return (
    <>
      {listed && <Badge tone={listed.list === 'blacklist' ? 'bad' : 'good'}>{listed.list === 'blacklist' ? 'on the deny list' : 'on the allow list'}</Badge>} {listed?.reason && <>{listed.reason} · </>}
      {!listed && latest?.allowed === false && <><Badge tone="bad">would be refused now</Badge> {by && <>by {by} · </>}</>}
      {!listed && latest?.allowed === true && <Badge tone="good">would pass now</Badge>} {tier && <>plan {tier}</>}
    </>
  );
}

/** The kinds of requests that it sent, from the log of decisions. */
function Requests({ requests }: { requests: ClientPage['requests'] }) {
  return (
    <Card className="flush" title="What it sends" about="From its recent decisions; the limits above are those that these requests meet">
      <Table
        label="Recent requests"
        rows={requests.map((one, index) => ({ ...one, place: index }))}
        id={({ place }) => String(place)}
        columns={[
          { name: 'Request', cell: ({ method, endpoint }) => <span className="mono wrap">{[method, endpoint].filter(Boolean).join(' ') || '–'}</span> },
          { name: 'Model', cell: ({ model_id: model }) => model ?? <span className="muted">–</span> },
          { name: 'Tenant', minor: true, cell: ({ tenant_id: tenant }) => tenant ?? <span className="muted">–</span> },
          { name: 'Decisions', minor: true, align: 'right', cell: ({ decisions }) => count(decisions) },
          { name: 'Last', minor: true, cell: ({ last_at: at }) => <Ago at={at} /> },
          { name: 'Now', cell: ({ allowed }) => (allowed === null ? '–' : <Badge tone={allowed ? 'good' : 'bad'}>{allowed ? 'would pass' : 'refused'}</Badge>) },
        ]}
      />
    </Card>
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
  const put = (tier: string) => (tier === '' ? call('DELETE', `client-tiers/${segment(entryId)}`) : call('POST', 'client-tiers', { body: { identifier_type: client.type, identifier: client.id, tier } }));
  const change = useMutation({
    mutationFn: put,
    onSuccess: (_, tier) => {
      const old = own.data?.tier ?? '';
      toast('The plan is changed.', 'good', tier === old ? undefined : () => put(old).then(() => queries.invalidateQueries()));
      void queries.invalidateQueries({ queryKey: ['client-tier'] });
      void queries.invalidateQueries({ queryKey: ['client'] });
    },
    onError: (error) => toast(sentence(error), 'bad'),
  });
  return (
    <Card title="Plan">
      <Load query={tiers} rows={1}>
        {(list) =>
          list.length === 0 ? (
            <p className="muted">{isFromFile ? 'The file of rules has no plans.' : <>There are no plans yet. <Link href="/tiers">Make some</Link>.</>}</p>
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
    mutationFn: (grant: Grant) => call('DELETE', `grants/${segment(grant.grant_id)}`),
    onSuccess: (_, { rule_id, identifier_type, extra, expires_at, reason }) => {
      const body = { rule_id, identifier_type, identifier: client.id, extra, expires_at, ...(reason ? { reason } : {}) };
      toast('The extra quota has ended.', 'good', () => call('POST', 'grants', { body }).then(() => queries.invalidateQueries()));
    },
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
                  <span><b>+<Extra grant={grant} /></b> on {grant.rule_id} <small>until {instant(grant.expires_at)}</small></span>
                  {operate && <Button kind="quiet" icon="trash" aria-label={`End the extra quota on ${grant.rule_id}`} onClick={() => end.mutate(grant)}>End</Button>}
                </li>
              ))}
            </ul>
          );
        }}
      </Load>
    </Card>
  );
}

/** How much more a grant gives, with the unit of its rule. */
function Extra({ grant }: { grant: Grant }) {
  const unit = useUnit(grant.rule_id);
  return unit.unit === 'money' ? money(grant.extra, unit.currency) : count(grant.extra);
}

const SEARCHED: Record<Type, string> = { user_id: 'user_id', tenant_id: 'tenant_id', ip: 'ip', api_key: 'api_key_id' };

/** How the log of decisions finds it. */
function searchOf({ type, id }: Client, known: string): Record<string, string> {
  return { [SEARCHED[type]]: type === 'api_key' ? known : id };
}

/** What was decided about a client lately. */
export function Decisions({ search, about }: { search: Record<string, string>; about?: ReactNode }) {
  const lately = useAsk({
    queryKey: ['decisions', 'of', search],
    queryFn: ({ signal }) => get<Page<Decided>>('decisions', { ...search, limit: 10 }, signal),
    refetchInterval: LOOK_MS,
  });
  return (
    <Card title="Recent decisions" about={about} actions={<Link href={`/audit?${new URLSearchParams({ kind: 'decisions', ...search }).toString()}`}>All of them</Link>}>
      <Load query={lately} rows={2}>
        {({ items }) =>
          items.length === 0 ? <p className="muted">None is in the log. Refused requests are always there, allowed ones by sampling (<code>audit.sample_allowed</code>).</p> : (
            <ul className="lines">
              {items.map((one) => (
                <li key={one.id}>
                  <span><Result result={one.result} /> <Sentence row={one} /> <small>{[one.method, one.endpoint, one.model_id].filter(Boolean).join(' ')}</small></span>
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
