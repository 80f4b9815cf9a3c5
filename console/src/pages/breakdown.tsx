// Who and what is refused, or would be: by scope, tenant and model from the history of the node, by rule and reason
// from the log of decisions.
import { keepPreviousData, useQuery as useAsk } from '@tanstack/react-query';
import { useMemo } from 'react';
import { readLog } from '../api/log';
import type { History } from '../api/types';
import { count, percent, perSecondText, short } from '../lib/format';
import type { View } from '../lib/range';
import { type LogKey, logSeries, NO_RULE } from '../lib/refusalLog';
import { fromKey, isNamed } from '../lib/subject';
import { column, perSecond, shares } from '../lib/windows';
import { formatTime, zoneName } from '../lib/zone';
import { Link, useQuery } from '../router';
import { PALETTE, type Series } from '../ui/chart';
import { Card, Empty, Fault, Loading, Segmented } from '../ui/parts';
import { TimeChart } from '../ui/timechart';
import { KeyMenu } from './acts';
import type { Span } from './range';

const BY = [
  { value: 'scope', name: 'Scope' },
  { value: 'tenant_id', name: 'Tenant' },
  { value: 'model_id', name: 'Model' },
  { value: 'rule_id', name: 'Rule' },
  { value: 'reason', name: 'Reason' },
] as const;
export type By = (typeof BY)[number]['value'];
const OF = [
  { value: 'denied', name: 'Refused' },
  { value: 'would_deny', name: 'Would be refused' },
] as const;
type Of = (typeof OF)[number]['value'];

/** The most lines of one chart. */
const MAX_SERIES = 10;
/** The log is larger than a history, and is read less often. */
const LOG_MS = 15_000;

export function byOf(text: string | null): By {
  return BY.find((one) => one.value === text)?.value ?? 'scope';
}

/** Whether the history of a node has it; the others are in the log alone. */
export function isOfHistory(by: By): by is 'scope' | 'tenant_id' | 'model_id' {
  return by !== 'rule_id' && by !== 'reason';
}

interface Line {
  name: string;
  total: number;
  /** Of all requests, where that is known. */
  share: number | null;
  values: (number | null)[];
}

export function Breakdown({ view, span, by, onBy }: { view: View; span: Span; by: By; onBy: (by: By) => void }) {
  const [query, setQuery] = useQuery();
  const of = OF.find((one) => one.value === query.get('of'))?.value ?? 'denied';
  const own = isOfHistory(by);
  return (
    <Card
      title={of === 'denied' ? 'Refusals' : 'Would be refused'}
      about={of === 'denied' ? 'Who or what is refused, and how often' : 'By rules that only report, or in shadow mode: these requests passed'}
      actions={
        <>
          <Segmented label="Which requests" value={of} options={OF} onChange={(value) => setQuery({ of: value === 'denied' ? null : value })} />
          <Segmented label="Refusals by" value={by} options={BY} onChange={onBy} />
        </>
      }
    >
      {own ? <HistoryLines view={view} span={span} by={by} of={of} /> : <LogLines view={view} span={span} by={by} of={of} />}
    </Card>
  );
}

function historyLines(history: History, of: Of, length: number): Line[] {
  const named = new Map(history.values.map((one) => [one.name, one]));
  return shares(history)
    .map(({ name, refused, wouldDeny, rate }): Line => {
      const one = named.get(name);
      return { name, total: of === 'denied' ? refused : wouldDeny, share: of === 'denied' ? rate : null, values: perSecond(column(of === 'denied' ? one?.refused : one?.would_deny, length), history.step_seconds) };
    })
    .filter(({ total }) => total > 0)
    .sort((a, b) => b.total - a.total);
}

function HistoryLines({ view: { axis, history }, span, by, of }: { view: View; span: Span; by: By; of: Of }) {
  const lines = useMemo(() => historyLines(history, of, axis.length), [history, of, axis]);
  return <Lines lines={lines} axis={axis} span={span} by={by} of={of} />;
}

function LogLines({ view: { axis, history }, span, by, of }: { view: View; span: Span; by: LogKey; of: Of }) {
  const { range, minutes } = span;
  const step = history.step_seconds;
  const log = useAsk({
    queryKey: ['log', of, range ? [range.from, range.until] : minutes],
    queryFn: ({ signal }) => readLog({ result: of }, range?.from ?? Date.now() - minutes * 60_000, range?.until ?? null, signal),
    refetchInterval: LOG_MS,
    placeholderData: keepPreviousData,
  });
  const lines = useMemo(
    () => logSeries(log.data?.records ?? [], by, axis, step, log.data?.knownFrom ?? null).map(({ name, total, values }): Line => ({ name, total, share: null, values: perSecond(values, step) })),
    [log.data, by, axis, step],
  );
  if (log.error && !log.data) return <Fault error={log.error} retry={() => void log.refetch()} />;
  if (!log.data) return <Loading rows={4} />;
  return (
    <>
      <Lines lines={lines} axis={axis} span={span} by={by} of={of} />
      <p className="note">
        From the log of decisions, of all nodes that write to it. Repeats are added once a minute.
        {log.data.knownFrom !== null && <> There is more than is read here: only what follows {formatTime(log.data.knownFrom, 'instant')} {zoneName()} is shown. Choose a shorter range to see the rest.</>}
      </p>
    </>
  );
}

function Lines({ lines, axis, span, by, of }: { lines: Line[]; axis: number[]; span: Span; by: LogKey | By; of: Of }) {
  const shown = useMemo(() => lines.slice(0, MAX_SERIES), [lines]);
  const series = useMemo(() => shown.map(({ name, values }, index): Series => ({ name, values, color: PALETTE[index] ?? '--ink-2', dash: of === 'would_deny' })), [shown, of]);
  const word = BY.find((one) => one.value === by)?.name ?? '';
  if (lines.length === 0) {
    return (
      <Empty icon="check" title={of === 'denied' ? 'Nobody was refused' : 'Nobody would have been refused'}>
        <p>{of === 'denied' ? 'In this span every request passed.' : 'In this span no rule on trial was exceeded.'}</p>
      </Empty>
    );
  }
  const what = of === 'denied' ? 'Refusals' : 'Requests that would be refused';
  return (
    <div className="grid chart-table">
      <TimeChart times={axis} series={series} format={perSecondText} height={240} scale={span.scale} onRange={span.setRange} onScale={span.setScale} label={`${what} per second, by ${word.toLowerCase()}: ${shown.slice(0, 3).map((one) => `${one.name} ${count(Math.round(one.total))}`).join(', ')}.`} />
      <ShareTable rows={shown} word={word} by={by} of={of} />
    </div>
  );
}

function ShareTable({ rows, word, by, of }: { rows: Line[]; word: string; by: LogKey | By; of: Of }) {
  const hasShares = rows.some(({ share }) => share !== null);
  return (
    <table className="plain">
      <thead>
        <tr>
          <th scope="col">{word}</th>
          <th scope="col" className="right">{of === 'denied' ? 'Refused' : 'Would be refused'}</th>
          {hasShares && <th scope="col" className="right">Share</th>}
        </tr>
      </thead>
      <tbody>
        {rows.map(({ name, total, share }, index) => (
          <tr key={name}>
            <td>
              <span className="keyed">
                <i style={{ background: `var(${PALETTE[index] ?? '--ink-2'})` }} />
                <Name name={name} by={by} of={of} />
              </span>
            </td>
            <td className="right">{short(total)}</td>
            {hasShares && <td className="right">{share === null ? '–' : percent(share)}</td>}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Name({ name, by, of }: { name: string; by: LogKey | By; of: Of }) {
  if (by === 'tenant_id' && isNamed(name)) return <KeyMenu subject={fromKey(name, { tenant_id: name }, null)} />;
  if (by === 'rule_id' && name !== NO_RULE && name !== 'default') return <Link href={`/rules/${encodeURIComponent(name)}`}>{name}</Link>;
  if (by === 'reason') return <Link href={`/audit?${new URLSearchParams({ kind: 'decisions', result: of, reason: name }).toString()}`}>{name}</Link>;
  return name;
}
