// What can be done about a client from wherever its name is shown.
import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { type ReactNode, useState } from 'react';
import { ApiError, call, get, segment } from '../api/client';
import { useMay } from '../api/session';
import type { Decided, Explained, Grant, Page, RuleEntry } from '../api/types';
import { count } from '../lib/format';
import { money, nanosOf } from '../lib/money';
import { type Client, contextOf, fromDecision, grantee, identitiesOf, IDENTITY_NAMES, requestOf, searchOf, type Subject } from '../lib/subject';
import { isEditable, isNameable, ownRuleHref, raiseHref } from '../lib/raise';
import { KEY_RULES } from '../lib/units';
import { Link } from '../router';
import { Menu, type MenuItem } from '../ui/menu';
import { Badge, Button, Confirm, Dialog, Empty, Fault, Field, Load } from '../ui/parts';
import { toast } from '../ui/toast';
import { LimitList } from './limits';
import { Reason } from './reason';

type Act = 'explain' | 'block' | 'grant' | 'reset';
const HOUR_MS = 3_600_000;
/** Decisions among which the last whole request of a key is looked for. */
const MAX_LOOKED_AT = 50;

function query(path: string, values: Record<string, string>): string {
  return `${path}?${new URLSearchParams(values).toString()}`;
}

/** The name of a client, and everything that can be done about it. */
export function KeyMenu({ subject, children }: { subject: Subject; children?: ReactNode }) {
  const may = useMay();
  const [act, setAct] = useState<Act | null>(null);
  const clients = identitiesOf(subject);
  const first = clients[0];
  const items: MenuItem[] = [];
  if (may.view && (clients.length > 0 || subject.ruleId !== null)) items.push({ name: 'Explain', icon: 'search', act: () => setAct('explain') });
  if (first) items.push({ name: 'Open client', icon: 'clients', href: query('/clients', { type: first.type, id: first.id }) });
  items.push({ name: 'Open history', icon: 'audit', href: query('/audit', { kind: 'decisions', ...searchOf(subject, clients.length === 0) }) });
  if (may.operate && first && subject.ruleId !== null && !subject.ruleId.startsWith(KEY_RULES)) items.push({ name: 'Give extra quota', icon: 'plus', act: () => setAct('grant') });
  if (may.operate && isEditable(subject.ruleId)) items.push({ name: 'Raise this limit', icon: 'edit', href: raiseHref(subject.ruleId, subject.window, first?.id) });
  const named = clients.find(isNameable);
  if (may.operate && named) items.push({ name: 'Add a rule for it', icon: 'rules', href: ownRuleHref(subject.ruleId, named) });
  if (subject.ruleId?.startsWith(KEY_RULES) && first) items.push({ name: 'Open its keys', icon: 'keys', href: query('/keys', { find: subject.attributes['user_id'] ?? subject.attributes['tenant_id'] ?? '' }) });
  if (may.reset && first && subject.ruleId !== null) items.push({ name: 'Reset counter', icon: 'reset', act: () => setAct('reset') });
  if (may.operate && first) items.push({ name: 'Block', icon: 'lists', act: () => setAct('block'), danger: true });
  const close = () => setAct(null);
  return (
    <>
      <Menu label={subject.title} items={items} {...(subject.ruleId === null ? {} : { about: `refused by ${subject.ruleId}` })}>{children ?? subject.title}</Menu>
      {act === 'explain' && <Whole subject={subject}>{(whole) => <Explain subject={whole} onClose={close} />}</Whole>}
      {act === 'block' && <Reason kind="blacklist" title={`Block ${subject.title}?`} verb="Block" choices={clients} onClose={close} />}
      {act === 'grant' && <GiveGrant clients={clients} rules={subject.ruleId === null ? [] : [subject.ruleId]} onClose={close} />}
      {act === 'reset' && <Whole subject={subject}>{(whole) => <ResetOne subject={whole} onClose={close} />}</Whole>}
    </>
  );
}

/** A key alone meets no rule that asks for an endpoint: its last decision gives the rest of the request. */
function Whole({ subject, children }: { subject: Subject; children: (whole: Subject) => ReactNode }) {
  const last = useAsk({
    queryKey: ['decisions', 'last', subject],
    queryFn: async ({ signal }) => {
      if (subject.isWhole) return subject;
      const { items } = await get<Page<Decided>>('decisions', { ...searchOf(subject, true), limit: MAX_LOOKED_AT }, signal);
      // Records that stand for repeats have no endpoint.
      const last = items.find(({ kept }) => kept === null) ?? items[0];
      const found = last && fromDecision(last);
      return found ? { ...found, title: subject.title, attributes: { ...found.attributes, ...subject.attributes } } : subject;
    },
    staleTime: Infinity,
  });
  // Without the log the key has to do.
  if (last.isPending) return null;
  return children(last.data ?? subject);
}

const VERDICTS: Record<Explained['rules'][number]['verdict'], string> = {
  applies: 'applies', less_specific: 'yields to', replaced: 'is replaced by', default_yields: 'yields to', misses: 'does not fit:',
};

function Explain({ subject, onClose }: { subject: Subject; onClose: () => void }) {
  const explained = useAsk({ queryKey: ['explain', subject], queryFn: () => call<Explained>('POST', 'rules/explain', { body: requestOf(subject) }) });
  const sent = [subject.attributes['method'], subject.attributes['endpoint'], subject.attributes['model_id']].filter(Boolean).join(' ');
  return (
    <Dialog title={`Why: ${subject.title}`} wide onClose={onClose}>
      <Load query={explained}>
        {(data) => (
          <div className="stack">
            <p><Badge tone={data.allowed ? 'good' : 'bad'}>{data.allowed ? 'would pass now' : 'would be refused now'}</Badge> {data.explanation}</p>
            <p className="muted">
              {sent === '' ? 'For a request with its key alone.' : <>For its last request: <span className="mono">{sent}</span>.</>} {data.tier && <>Plan {data.tier}.</>}
              {subject.attributes['api_key_id'] !== undefined && ' Its API key is stored as a hash, so rules that compare API keys are not part of this.'}
            </p>
            {data.limits.length > 0 ? <LimitList limits={data.limits} client={subject.title} /> : <Empty icon="rules" title="No limit applies" />}
            <details>
              <summary>All rules that were looked at</summary>
              <ul className="lines">
                {data.rules.map((rule) => (
                  <li key={rule.rule_id}><span>{rule.rule_id === 'default' ? 'default' : <Link href={`/rules/${segment(rule.rule_id)}`}>{rule.rule_id}</Link>} <small>{VERDICTS[rule.verdict]} {rule.because}</small></span></li>
                ))}
              </ul>
            </details>
          </div>
        )}
      </Load>
    </Dialog>
  );
}

function ResetOne({ subject, onClose }: { subject: Subject; onClose: () => void }) {
  const [client] = identitiesOf(subject);
  const rule = subject.ruleId ?? '';
  const steps = client ? [{ ...client, query: { ...contextOf(subject, client.type), rule_id: rule } }] : [];
  return <Reset title={`Reset ${subject.title} on ${rule}?`} rules={[rule]} steps={steps} onClose={onClose} />;
}

export interface ResetStep extends Client {
  query: Record<string, string>;
}

/** Resets counters, one call for each kind of request that meets them. */
export function Reset({ title, rules, steps, onClose }: { title: string; rules: string[]; steps: ResetStep[]; onClose: () => void }) {
  const queries = useQueryClient();
  const reset = useMutation({
    mutationFn: async () => {
      const done = new Set<string>();
      for (const { type, id, query: given } of steps) {
        const { reset: names } = await call<{ reset: string[] }>('POST', `usage/${type}/${segment(id)}/reset`, { query: given });
        for (const name of names) done.add(name);
      }
      return [...done];
    },
    onSuccess: (done) => {
      toast(done.length === 0 ? 'Nothing was counted.' : `Reset: ${done.join(', ')}.`);
      void queries.invalidateQueries({ queryKey: ['client'] });
      onClose();
    },
  });
  return (
    <Confirm title={title} verb="Reset" busy={reset.isPending} error={reset.error} onConfirm={() => reset.mutate()} onClose={onClose}>
      <p>{rules.length === 0 ? 'All counters of this client that you see' : `What ${rules.join(', ')} counted for this key`} begins at zero again. This cannot be undone; limits stay as they are.</p>
    </Confirm>
  );
}

const UNITS = { hours: HOUR_MS, days: 24 * HOUR_MS } as const;

/** More quota for a while, on the rule that refuses. */
export function GiveGrant({ clients, rules, onClose }: { clients: Client[]; rules: string[]; onClose: () => void }) {
  const queries = useQueryClient();
  const [form, setForm] = useState({ rule_id: rules[0] ?? '', extra: '1000', length: '1', unit: 'days' as keyof typeof UNITS, reason: '' });
  const rule = useAsk({ queryKey: ['rule', form.rule_id, 'key'], queryFn: ({ signal }) => keyOf(form.rule_id, signal), enabled: form.rule_id !== '' });
  const client = clients.length === 1 && clients[0]?.type === 'api_key' ? clients[0] : rule.data === undefined ? null : grantee(rule.data, clients);
  // Money is typed as people write it, and sent in billionths.
  const { unit, currency } = rule.data ?? {};
  const isMoney = unit === 'money';
  const extra = isMoney ? nanosOf(form.extra) : /^\d+$/.test(form.extra.trim()) ? Number(form.extra) : null;
  const give = useMutation({
    mutationFn: async () => {
      if (!client) throw new Error('The rule does not count by anything that is known of this client.');
      const body = { rule_id: form.rule_id, extra: extra ?? 0, identifier_type: client.type, identifier: client.id, expires_at: new Date(Date.now() + Number(form.length) * UNITS[form.unit]).toISOString(), ...(form.reason ? { reason: form.reason } : {}) };
      return call<Grant>('POST', 'grants', { body });
    },
    onSuccess: (grant) => {
      const undo = async () => {
        await call('DELETE', `grants/${segment(grant.grant_id)}`, { ifVersion: grant.version });
        await queries.invalidateQueries();
      };
      toast(`${client?.id ?? ''} has ${isMoney ? money(extra ?? 0, currency) : count(extra ?? 0)} more on ${form.rule_id}.`, 'good', undo);
      void queries.invalidateQueries();
      onClose();
    },
  });
  const set = (name: keyof typeof form) => (event: { target: { value: string } }) => setForm({ ...form, [name]: event.target.value });
  const isWrong = extra === null || extra <= 0 || !(Number(form.length) > 0) || form.rule_id === '' || (rule.data !== undefined && !client);
  return (
    <Dialog title={`Extra quota for ${client?.id ?? clients[0]?.id ?? ''}`} onClose={onClose}>
      <form className="stack" onSubmit={(event) => { event.preventDefault(); give.mutate(); }}>
        <Field label={isMoney ? `How much more, in ${currency ?? 'its currency'}` : 'How much more'} hint={isMoney ? 'An amount such as 5.00' : undefined}>{(props) => <input {...props} data-autofocus inputMode="numeric" value={form.extra} onChange={set('extra')} />}</Field>
        <Field label="Rule" hint={rule.data !== undefined && !client ? 'This rule counts by something else than this client.' : client && `Counted by ${IDENTITY_NAMES[client.type]}: ${client.id}`}>
          {(props) => rules.length > 1 ? <select {...props} value={form.rule_id} onChange={set('rule_id')}>{rules.map((one) => <option key={one}>{one}</option>)}</select> : <input {...props} value={form.rule_id} spellCheck={false} onChange={set('rule_id')} />}
        </Field>
        <div className="fields">
          <Field label="For how long">{(props) => <input {...props} inputMode="numeric" value={form.length} onChange={set('length')} />}</Field>
          <Field label="Hours or days">{(props) => <select {...props} value={form.unit} onChange={set('unit')}><option value="hours">hours</option><option value="days">days</option></select>}</Field>
        </div>
        <Field label="Why">{(props) => <input {...props} value={form.reason} placeholder="launch week" onChange={set('reason')} />}</Field>
        {give.error && <Fault error={give.error} />}
        <div className="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" busy={give.isPending} disabled={isWrong}>Give</Button>
        </div>
      </form>
    </Dialog>
  );
}

/** What a rule counts by; null for the built-in default. */
async function keyOf(id: string, signal: AbortSignal): Promise<RuleEntry['rule'] | null> {
  if (id === 'default') return null;
  try {
    return (await get<RuleEntry>(`rules/${segment(id)}`, {}, signal)).rule;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}
