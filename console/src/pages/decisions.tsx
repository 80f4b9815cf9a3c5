// Decisions: which are looked for, and each as a sentence with links to its client and its rule.
import type { Decided } from '../api/types';
import { useUnit } from '../api/units';
import { instant } from '../lib/format';
import { fromDecision } from '../lib/subject';
import { KEY_RULES, moneySentence } from '../lib/units';
import { fromInput, toInput, zoneName } from '../lib/zone';
import { Link } from '../router';
import { Ago } from '../ui/ago';
import { Badge, Button, Field } from '../ui/parts';
import type { Column } from '../ui/table';
import { KeyMenu } from './acts';

/** The filters, as the address and the API name them. */
export const DECISION_FILTERS = ['from', 'until', 'result', 'user_id', 'rule_id', 'tenant_id', 'api_key_id', 'ip', 'scope', 'model_id', 'endpoint', 'reason', 'request_id'];

const SPANS = [
  ['', 'Any time'],
  ['5m', 'Last 5 minutes'],
  ['15m', 'Last 15 minutes'],
  ['1h', 'Last hour'],
  ['24h', 'Last day'],
  ['7d', 'Last week'],
] as const;
const RESULTS = [
  ['', 'Any'],
  ['denied', 'Refused'],
  ['would_deny', 'Would be refused'],
  ['throttled', 'Delayed'],
  ['queued', 'Queued'],
  ['allowed', 'Allowed'],
] as const;
const FIRST: [name: string, label: string, example: string][] = [
  ['user_id', 'User', 'ann'],
  ['rule_id', 'Rule', 'per-user'],
  ['tenant_id', 'Tenant', 'acme'],
];
const MORE: [name: string, label: string, example: string][] = [
  ['ip', 'IP address', '203.0.113.9'],
  ['api_key_id', 'API key id', ''],
  ['scope', 'Scope', 'USER'],
  ['model_id', 'Model', 'gpt-4o'],
  ['endpoint', 'Endpoint', '/v1/chat'],
  ['reason', 'Reason', 'HIT_USER_LIMIT'],
  ['request_id', 'Request id', ''],
];
const HOUR_MS = 3_600_000;

type Filters = Record<string, string>;

export function DecisionFilters({ filters, isLive, onChange }: { filters: Filters; isLive: boolean; onChange: (values: Record<string, string | null>) => void }) {
  const { from = '', until = '' } = filters;
  const isSpan = until === '' && SPANS.some(([value]) => value === from);
  const text = ([name, label, example]: [string, string, string]) => (
    <Field key={name} label={label}>
      {(props) => <input {...props} value={filters[name] ?? ''} placeholder={example} spellCheck={false} onChange={(event) => onChange({ [name]: event.target.value })} />}
    </Field>
  );
  const chooseTime = (value: string) => onChange(value === 'custom' ? { from: new Date(Date.now() - HOUR_MS).toISOString(), until: null } : { from: value, until: null });
  return (
    <>
      <div className="toolbar filters">
        {!isLive && <Field label="Time">
          {(props) => (
            <select {...props} value={isSpan ? from : 'custom'} onChange={(event) => chooseTime(event.target.value)}>
              {SPANS.map(([value, name]) => <option key={value} value={value}>{name}</option>)}
              <option value="custom">From … until …</option>
            </select>
          )}
        </Field>}
        {!isLive && !isSpan && (
          <>
            <Field label={`From (${zoneName()})`}>{(props) => <input {...props} type="datetime-local" step="1" value={toInput(from)} onChange={(event) => onChange({ from: fromInput(event.target.value) })} />}</Field>
            <Field label={`Until (${zoneName()})`}>{(props) => <input {...props} type="datetime-local" step="1" value={toInput(until)} onChange={(event) => onChange({ until: fromInput(event.target.value) })} />}</Field>
          </>
        )}
        <Field label="Result">
          {(props) => <select {...props} value={filters['result'] ?? ''} onChange={(event) => onChange({ result: event.target.value })}>{RESULTS.map(([value, name]) => <option key={value} value={value}>{name}</option>)}</select>}
        </Field>
        {FIRST.map(text)}
      </div>
      <details className="more-filters" open={MORE.some(([name]) => (filters[name] ?? '') !== '') || undefined}>
        <summary>More filters</summary>
        <div className="toolbar filters">{MORE.map(text)}</div>
      </details>
    </>
  );
}

export function When({ at }: { at: string }) {
  return <span className="two-lines"><span title={zoneName()}>{instant(at)}</span><small><Ago at={at} /></small></span>;
}

const NAMES: Record<Decided['result'], [name: string, tone: 'good' | 'bad' | 'warn' | 'info']> = {
  allowed: ['allowed', 'good'],
  denied: ['refused', 'bad'],
  throttled: ['delayed', 'warn'],
  queued: ['queued', 'warn'],
  would_deny: ['would be refused', 'info'],
};

export function Result({ result }: { result: Decided['result'] }) {
  const [name, tone] = NAMES[result];
  return <Badge tone={tone}>{name}</Badge>;
}

/** What was decided, with amounts of money as people read them. */
export function Sentence({ row }: { row: Decided }) {
  return moneySentence(row, useUnit(row.rule_id));
}

export function decisionColumns(show: (row: Decided) => void): Column<Decided>[] {
  return [
    { name: 'When', minor: true, width: '13.5rem', cell: ({ timestamp }) => <When at={timestamp} /> },
    {
      name: 'Decision',
      cell: (row) => (
        <span className="two-lines">
          <span><Result result={row.result} /> <span className="phone-only"><KeyMenu subject={fromDecision(row)} /></span></span>
          <span className="wrap"><Sentence row={row} /></span>
          <small className="phone-only"><Ago at={row.timestamp} /></small>
        </span>
      ),
    },
    {
      name: 'Client',
      minor: true,
      width: '11rem',
      cell: (row) => <span className="two-lines"><KeyMenu subject={fromDecision(row)} /><small>{row.tenant_id}</small></span>,
    },
    {
      name: 'Rule',
      minor: true,
      width: '11rem',
      cell: ({ rule_id: rule, rule_version: version }) => (
        <span className="two-lines">
          <span className="clip">{rule === null || rule === 'default' || rule.startsWith(KEY_RULES) ? rule ?? '–' : <Link href={`/rules/${encodeURIComponent(rule)}${version === null ? '' : '?tab=versions'}`}>{rule}</Link>}</span>
          <small>{version === null ? '' : `version ${String(version)}`}</small>
        </span>
      ),
    },
    { name: 'Actions', hidden: true, align: 'right', width: '8.5rem', cell: (row) => <Button kind="quiet" icon="right" aria-label={`Details of the decision ${String(row.id)}`} onClick={() => show(row)}>Details</Button> },
  ];
}
