// All rules, with what they do right now.
import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { useMemo, useState } from 'react';
import { all, call, get, segment } from '../api/client';
import { useMay } from '../api/session';
import type { RuleEntry, Top } from '../api/types';
import { count, plural, roughly, short } from '../lib/format';
import { withField } from '../lib/rule';
import { headline, planTexts, summary } from '../lib/ruleSummary';
import { orderOf } from '../lib/sort';
import { amountOf } from '../lib/units';
import { Link, useQuery } from '../router';
import { Icon } from '../ui/icons';
import { Ago } from '../ui/ago';
import { Badge, Card, Confirm, Empty, Load, PageHead, Segmented, sentence } from '../ui/parts';
import { type Column, inOrder, Table } from '../ui/table';
import { toast } from '../ui/toast';

const STATES = [
  { value: 'all', name: 'All' },
  { value: 'active', name: 'On' },
  { value: 'inactive', name: 'Off' },
] as const;
type State = (typeof STATES)[number]['value'];

const ACTIONS: Record<NonNullable<RuleEntry['rule']['action']>, [name: string, tone: 'neutral' | 'info' | 'warn']> = {
  reject: ['Refuse', 'neutral'],
  throttle: ['Delay', 'warn'],
  queue: ['Queue', 'warn'],
  log_only: ['Only report', 'info'],
};

export function matches(entry: RuleEntry, text: string, state: State): boolean {
  if (state !== 'all' && entry.status !== state) return false;
  if (text === '') return true;
  const { rule_id: id, name, scope, description } = entry.rule;
  return [id, name, scope, description, entry.tenant_id].some((part) => part?.toLowerCase().includes(text.toLowerCase()));
}

export default function Rules() {
  const may = useMay();
  const [query, setQuery] = useQuery();
  const text = query.get('find') ?? '';
  const state = STATES.find((one) => one.value === query.get('state'))?.value ?? 'all';
  const rules = useAsk({ queryKey: ['rules'], queryFn: ({ signal }) => all<RuleEntry>('rules', {}, signal) });
  const top = useAsk({
    queryKey: ['top', 'rules'],
    queryFn: ({ signal }) => get<Top>('top', { limit: 1 }, signal),
    refetchInterval: 5_000,
    enabled: may.view,
  });
  const found = useMemo(() => (rules.data ?? []).filter((entry) => matches(entry, text, state)), [rules.data, text, state]);
  const usage = useMemo(() => new Map(top.data?.rules.map((rule) => [rule.rule_id, rule])), [top.data]);
  const columns = useColumns(usage, may.view, may.rules);
  const order = orderOf(query.get('sort'));
  return (
    <>
      <PageHead title="Rules" about={rules.data ? `${plural(rules.data.length, 'rule')}${found.length === rules.data.length ? '' : `, ${short(found.length)} shown`}` : 'Who may do how much'}>
        {may.rules && (
          <Link href="/rules/new" className="button primary">
            <Icon name="plus" size={16} /> New rule
          </Link>
        )}
      </PageHead>
      <Card className="flush">
        <div className="toolbar">
          <label className="search">
            <span className="sr-only">Find rules</span>
            <Icon name="search" size={16} />
            <input type="search" placeholder="Find by id, name, scope or tenant" value={text} onChange={(event) => setQuery({ find: event.target.value })} />
          </label>
          <Segmented label="State" value={state} options={STATES} onChange={(value) => setQuery({ state: value === 'all' ? null : value })} />
        </div>
        <Load query={rules} rows={8}>
          {(data) =>
            data.length === 0 ? (
              <Empty icon="rules" title={may.isTenant ? 'No rules of your own yet' : 'No rules yet'}>
                <p>{may.isTenant ? 'The rules of the installation apply. Yours can only be tighter.' : 'Until there is one, each user gets the built-in default: 100 requests per hour for each model.'}</p>
                {may.rules && <Link href="/rules/new" className="button primary"><Icon name="plus" size={16} /> Make the first rule</Link>}
              </Empty>
            ) : found.length === 0 ? (
              <Empty title="No rule fits">
                <p>Try fewer letters, or another state.</p>
              </Empty>
            ) : (
              <Table label="Rules" columns={columns} rows={inOrder(found, columns, order)} id={(entry) => entry.rule_id} fixed sorting={{ order, onSort: (sort) => setQuery({ sort }) }} />
            )
          }
        </Load>
      </Card>
      {top.data && rules.data && rules.data.length > 0 && <p className="muted">Figures of this node, last {roughly(top.data.seconds)}.</p>}
    </>
  );
}

function useColumns(usage: Map<string, Top['rules'][number]>, hasUsage: boolean, mayChange: boolean): Column<RuleEntry>[] {
  return [
    {
      name: 'Rule',
      width: '24%',
      sort: ({ rule_id: id }) => id,
      cell: ({ rule_id: id, rule, tenant_id: tenant }) => (
        <span className="two-lines">
          <Link href={`/rules/${segment(id)}`}>{id}</Link>
          <small title={rule.name ?? ''}>
            {tenant ? `${tenant} · ` : ''}
            {rule.name ?? rule.scope ?? ''}
          </small>
        </span>
      ),
    },
    { name: 'Means', minor: true, cell: ({ rule }) => <span className="two-rows" title={summary(rule).join('\n')}>{headline(rule)}</span> },
    {
      name: 'Action',
      minor: true,
      width: '9.5rem',
      sort: ({ rule }) => ACTIONS[rule.action ?? 'reject'][0],
      cell: ({ rule }) => {
        const [action, tone] = ACTIONS[rule.action ?? 'reject'];
        const plans = planTexts(rule);
        return <span className="two-lines"><Badge tone={tone}>{action}</Badge>{plans.length > 0 && <small title={plans.join('; ')}>{plural(plans.length, 'plan')}: {plans.join('; ')}</small>}</span>;
      },
    },
    ...(hasUsage
      ? ([
          {
            name: 'Used',
            minor: true,
            align: 'right',
            width: '9.5rem',
            sort: ({ rule_id: id }) => usage.get(id)?.consumed ?? 0,
            cell: ({ rule_id: id, rule }) => {
              const [figure, unit] = amountOf(rule, usage.get(id)?.consumed ?? 0);
              return <>{figure} <small>{unit}</small></>;
            },
          },
          {
            name: 'Refused',
            align: 'right',
            width: '6.5rem',
            sort: ({ rule_id: id }) => usage.get(id)?.refused ?? 0,
            cell: ({ rule_id: id, rule }) => {
              const { refused = 0, would_deny: watched = 0 } = usage.get(id) ?? {};
              if (watched > 0 && (rule.action === 'log_only' || refused === 0)) return <span className="warn-ink" title="Would have been refused">({short(watched)})</span>;
              return refused > 0 ? <b className="bad-ink">{short(refused)}</b> : <span className="muted">0</span>;
            },
          },
        ] satisfies Column<RuleEntry>[])
      : []),
    { name: 'Changed', minor: true, width: '7.5rem', align: 'right', sort: ({ updated_at: at }) => Date.parse(at), cell: (entry) => <span className="muted" title={`by ${entry.updated_by}`}><Ago at={entry.updated_at} /></span> },
    { name: 'State', width: '6.5rem', sort: ({ status }) => status, cell: (entry) => <Switch entry={entry} mayChange={mayChange} /> },
  ];
}

/** On at once; off after a look at what it refuses. */
function Switch({ entry, mayChange }: { entry: RuleEntry; mayChange: boolean }) {
  const queries = useQueryClient();
  const [isEnding, setEnding] = useState(false);
  const isOn = entry.status === 'active';
  const put = (from: RuleEntry, on: boolean) => call<RuleEntry>('PUT', `rules/${segment(from.rule_id)}`, { body: withField(from.rule, 'is_active', on ? undefined : false), ifVersion: from.version });
  const flip = useMutation({
    mutationFn: () => put(entry, !isOn),
    onSuccess: (changed) => {
      setEnding(false);
      toast(`${entry.rule_id} is ${isOn ? 'off' : 'on'}.`, 'good', () => put(changed, isOn).then(() => queries.invalidateQueries({ queryKey: ['rules'] })));
    },
    onError: (error) => toast(sentence(error), 'bad'),
    onSettled: () => queries.invalidateQueries({ queryKey: ['rules'] }),
  });
  if (!mayChange) return <Badge tone={isOn ? 'good' : 'neutral'}>{isOn ? 'On' : 'Off'}</Badge>;
  return (
    <>
      <button type="button" className="switch" role="switch" aria-checked={isOn} aria-label={`${entry.rule_id} is on`} disabled={flip.isPending} onClick={() => (isOn ? setEnding(true) : flip.mutate())}>
        <i />
      </button>
      {isEnding && (
        <Confirm title={`Turn ${entry.rule_id} off?`} verb="Turn off" busy={flip.isPending} error={null} onConfirm={() => flip.mutate()} onClose={() => setEnding(false)}>
          <Refused rule={entry.rule_id} />
        </Confirm>
      )}
    </>
  );
}

/** What a rule refused lately: what will pass without it. */
function Refused({ rule }: { rule: string }) {
  const { view } = useMay();
  const top = useAsk({ queryKey: ['top', 'hours', rule], queryFn: ({ signal }) => get<Top>('top', { rule_id: rule, window: 'hours', limit: 3 }, signal), enabled: view });
  if (!view) return <p>From now on it limits nobody.</p>;
  return (
    <Load query={top} rows={1}>
      {({ rules: [found], seconds }) => (
        <>
          <p>{found && found.refused > 0 ? <>It refused <b>{count(found.refused)}</b> requests in the last {roughly(seconds)}. They would have passed without it.</> : <>It refused nothing in the last {roughly(seconds)}.</>}</p>
          {found && found.top_refused.length > 0 && <ul className="lines">{found.top_refused.map((one) => <li key={one.key}><span className="mono">{one.key}</span><span>{count(one.count)}</span></li>)}</ul>}
        </>
      )}
    </Load>
  );
}
