// What was decided about a client over time. Of tenants the node remembers every request; of others there is the log.
import { keepPreviousData, useQuery as useAsk } from '@tanstack/react-query';
import { useMemo } from 'react';
import { get } from '../api/client';
import { readLog } from '../api/log';
import type { History } from '../api/types';
import { count, perMinuteText, perSecondText } from '../lib/format';
import { minutesFor, rangeBetween, stepsOf, viewOf } from '../lib/range';
import { type LogKey, logSeries } from '../lib/refusalLog';
import { ownSeries, refreshMillis, sum } from '../lib/windows';
import { formatTime, zoneName } from '../lib/zone';
import { useQuery } from '../router';
import { useNow } from '../ui/ago';
import { Legend, PALETTE, type Series } from '../ui/chart';
import { Card, Empty, Load, Segmented } from '../ui/parts';
import { TimeChart } from '../ui/timechart';
import { type Span, SpanControls, SpanNote, useSpan } from './range';

const BY = [
  { value: 'result', name: 'Result' },
  { value: 'rule_id', name: 'Rule' },
  { value: 'reason', name: 'Reason' },
] as const;
const RESULTS: Record<string, Pick<Series, 'name' | 'color' | 'dash'>> = {
  allowed: { name: 'Allowed', color: '--good' },
  denied: { name: 'Refused', color: '--bad' },
  would_deny: { name: 'Would be refused', color: '--series-4', dash: true },
  throttled: { name: 'Delayed', color: '--warn' },
  queued: { name: 'Queued', color: '--info' },
};
/** What remains of the log is not known here: the server says if it is asked for more. */
const MAX_AGE_MS = null;
const LOG_MS = 10_000;
const MAX_SERIES = 10;

/** `search` finds the client in the log. */
export function ClientChart({ search, tenant }: { search: Record<string, string>; tenant: string | null }) {
  const [query, setQuery] = useQuery();
  const span = useSpan(60, MAX_AGE_MS);
  const by = BY.find((one) => one.value === query.get('by'))?.value ?? 'result';
  return (
    <Card title="Over time" about={tenant !== null && by === 'result' ? 'Requests per second, on all nodes' : 'Requests per minute, from the log of decisions; allowed ones by sampling'} actions={<Segmented label="Decisions by" value={by} options={BY} onChange={(value) => setQuery({ by: value === 'result' ? null : value })} />}>
      <SpanControls span={span} />
      <SpanNote span={span} />
      {tenant !== null && by === 'result' ? <OfTenant tenant={tenant} span={span} /> : <OfLog search={search} span={span} by={by} />}
    </Card>
  );
}

function OfTenant({ tenant, span }: { tenant: string; span: Span }) {
  const { range, minutes } = span;
  const { from, until } = range ?? { from: null, until: null };
  const history = useAsk({
    queryKey: ['history', 'tenant_id', tenant, from === null ? minutes : [from, until]],
    queryFn: async ({ signal }) => {
      const asked = range ? minutesFor(range, Date.now()) : minutes;
      return { history: await get<History>('history', { minutes: asked, by: 'tenant_id', name: tenant }, signal), minutes: asked };
    },
    refetchInterval: refreshMillis(minutes),
    placeholderData: keepPreviousData,
  });
  const { data, dataUpdatedAt: now } = history;
  const drawn = useMemo(() => {
    if (!data) return undefined;
    const { axis, history: seen } = viewOf(data.history, data.minutes, now, from === null ? null : { from, until });
    const [own] = seen.values;
    return { axis, own, series: ownSeries(own, axis.length, seen.step_seconds) };
  }, [data, now, from, until]);
  return (
    <Load query={{ ...history, data: drawn }} rows={4}>
      {({ axis, own, series }) => <Drawn axis={axis} series={series} span={span} format={perSecondText} label={`Requests of ${tenant} per second: ${count(sum(own?.allowed))} allowed, ${count(sum(own?.refused))} refused.`} isEmpty={!own} />}
    </Load>
  );
}

function OfLog({ search, span, by }: { search: Record<string, string>; span: Span; by: LogKey }) {
  const { range, minutes } = span;
  const now = useNow();
  const log = useAsk({
    queryKey: ['log', search, by, range ? [range.from, range.until] : minutes],
    // Rules and reasons are those of refusals; of results all are shown.
    queryFn: ({ signal }) => readLog(by === 'result' ? search : { ...search, result: 'denied' }, range?.from ?? Date.now() - minutes * 60_000, range?.until ?? null, signal),
    refetchInterval: LOG_MS,
    placeholderData: keepPreviousData,
  });
  const { from, until } = range ?? rangeBetween(now - minutes * 60_000, now);
  const { axis, step } = useMemo(() => stepsOf({ from, until }), [from, until]);
  const series = useMemo(() => {
    const found = logSeries(log.data?.records ?? [], by, axis, step, log.data?.knownFrom ?? null).slice(0, MAX_SERIES);
    return found.map(({ name, values }, index): Series => ({ name, color: PALETTE[index] ?? '--ink-2', values: values.map((value) => (value === null ? null : (value / step) * 60)), ...(by === 'result' ? RESULTS[name] : {}) }));
  }, [log.data, by, axis, step]);
  const known = log.data?.knownFrom ?? null;
  return (
    <Load query={log} rows={4}>
      {() => (
        <>
          <Drawn axis={axis} series={series} span={span} format={perMinuteText} label={`Decisions per minute: ${series.map(({ name }) => name).join(', ')}.`} isEmpty={series.length === 0} />
          {known !== null && <p className="note">There is more than is read here: only what follows {formatTime(known, 'instant')} {zoneName()} is shown.</p>}
        </>
      )}
    </Load>
  );
}

function Drawn({ axis, series, span, format, label, isEmpty }: { axis: number[]; series: Series[]; span: Span; format: (value: number) => string; label: string; isEmpty: boolean }) {
  if (isEmpty) return <Empty icon="overview" title="No decisions in this range"><p>Choose a longer one, or look at all that is in the log.</p></Empty>;
  return (
    <>
      <Legend series={series} />
      <TimeChart times={axis} series={series} format={format} scale={span.scale} onRange={span.setRange} onScale={span.setScale} label={label} height={200} />
    </>
  );
}
