// What happens now, and what happened lately.
import { keepPreviousData, useQuery as useAsk } from '@tanstack/react-query';
import { useMemo } from 'react';
import { get } from '../api/client';
import { ofNode, useInstallation, useNodes } from '../api/nodes';
import { useIdentity, useMay } from '../api/session';
import type { History, Node } from '../api/types';
import { count, millis, percent, perSecondText, rate, roughly, short } from '../lib/format';
import { agreement } from '../lib/nodes';
import { HISTORY_MS, minutesFor, type View, viewOf } from '../lib/range';
import { column, last, ownSeries, perSecond, refreshMillis, sum } from '../lib/windows';
import { Link, useQuery } from '../router';
import { useNow } from '../ui/ago';
import { Legend, type Series } from '../ui/chart';
import { Badge, Card, Empty, Load, PageHead, Segmented } from '../ui/parts';
import { TimeChart } from '../ui/timechart';
import { Breakdown, type By, byOf, isOfHistory } from './breakdown';
import { LatencyHeat } from './latencyHeat';
import { Missing, NodeFilter } from './nodeFilter';
import { type Span, SpanControls, SpanNote, useSpan } from './range';
import { Start } from './start';
import { Timeline } from './timeline';
import { Tops } from './tops';

const TOP_MS = 5_000;

/** What is shown, and for which of its minutes it was asked. */
interface Asked {
  history: History;
  minutes: number;
}

export default function Overview() {
  const { view } = useMay();
  const [query, setQuery] = useQuery();
  const span = useSpan(15, HISTORY_MS);
  const by: By = view ? byOf(query.get('by')) : 'tenant_id';
  const label = isOfHistory(by) ? by : 'scope';
  const node = query.get('node');
  const hasHeat = view && query.get('latency') === 'heat';
  const { range, minutes } = span;
  const { from, until } = range ?? { from: null, until: null };
  const history = useAsk({
    queryKey: ['history', label, node, hasHeat, from === null ? minutes : [from, until]],
    queryFn: async ({ signal }): Promise<Asked> => {
      const asked = range ? minutesFor(range, Date.now()) : minutes;
      return { history: await get<History>('history', { minutes: asked, by: label, ...ofNode(node), ...(hasHeat ? { latencies: true } : {}) }, signal), minutes: asked };
    },
    refetchInterval: refreshMillis(minutes),
    placeholderData: keepPreviousData,
  });
  const { data, dataUpdatedAt: now } = history;
  const seen = useMemo(() => data && viewOf(data.history, data.minutes, now, from === null ? null : { from, until }), [data, now, from, until]);
  return (
    <>
      <PageHead title="Overview" about={view ? <NodeFilter node={node} onNode={(value) => setQuery({ node: value })} /> : 'What was decided for your tenant.'}>
        <SpanControls span={span} />
      </PageHead>
      <SpanNote span={span} />
      <Missing history={data?.history} />
      <Load query={{ ...history, data: seen }} rows={8}>
        {(found) => (view ? <Whole view={found} span={span} by={by} onBy={(value) => setQuery({ by: value })} node={node} hasHeat={hasHeat} onHeat={(value) => setQuery({ latency: value ? 'heat' : null })} /> : <Own view={found} span={span} />)}
      </Load>
    </>
  );
}

interface WholeProps {
  view: View;
  span: Span;
  by: By;
  onBy: (by: By) => void;
  node: string | null;
  hasHeat: boolean;
  onHeat: (hasHeat: boolean) => void;
}

const LATENCY = [
  { value: 'lines', name: 'Lines' },
  { value: 'heat', name: 'Heat map' },
] as const;

function Whole({ view, span, by, onBy, node: chosen, hasHeat, onHeat }: WholeProps) {
  const { axis, history } = view;
  const traffic = useMemo(() => trafficSeries(history, axis.length), [history, axis]);
  const latency = useMemo(() => latencySeries(history, axis.length), [history, axis]);
  const node = useAsk({ queryKey: ['node'], queryFn: ({ signal }) => get<Node>('node', {}, signal), refetchInterval: TOP_MS });
  const installation = useInstallation(chosen);
  const now = useNow() / 1000;
  const decided = installation.data?.decisions;
  const total = decided ? decided.allowed + decided.denied + decided.throttled + decided.queued : null;
  const isNew = node.data?.rules.count === 0 && node.data.rules.source !== 'file';
  // Before the first request, charts have nothing to show.
  if (isNew && total === 0) return <Start isArrived={false} />;
  const chart = { times: axis, scale: span.scale, onRange: span.setRange, onScale: span.setScale };
  return (
    <>
      {isNew && total !== null && <Start isArrived />}
      <Figures history={history} node={chosen} />
      <div className="grid two">
        <Card title="Decisions" about="Requests per second" actions={<Legend series={traffic} />}>
          <TimeChart {...chart} series={traffic} format={perSecondText} label={`Decisions per second: ${count(sum(history.all?.allowed))} allowed, ${count(refusals(history))} refused, ${count(sum(history.all?.would_deny))} would be refused.`} />
        </Card>
        <Card title="Time to decide" about="In the server, without the network" actions={<>{!hasHeat && <Legend series={latency} />}<Segmented label="Show latency as" value={hasHeat ? 'heat' : 'lines'} options={LATENCY} onChange={(value) => onHeat(value === 'heat')} /></>}>
          {hasHeat ? <LatencyHeat view={view} span={span} /> : <TimeChart {...chart} series={latency} format={millis} label={`Time to decide: p50 ${millis(last(history.all?.p50_ms))}, p95 ${millis(last(history.all?.p95_ms))}, p99 ${millis(last(history.all?.p99_ms))}.`} />}
        </Card>
      </div>
      <Timeline from={axis[0] ?? now} until={axis[axis.length - 1] ?? now} />
      <Breakdown view={view} span={span} by={by} onBy={onBy} />
      <Tops node={chosen} />
    </>
  );
}

function refusals(history: History): number {
  return sum(history.all?.denied) + sum(history.all?.queued);
}

function trafficSeries(history: History, length: number): Series[] {
  const { all, step_seconds: step } = history;
  const of = (values: number[] | undefined) => perSecond(column(values, length), step);
  const series: Series[] = [
    { name: 'Allowed', color: '--good', values: of(all?.allowed), fill: true },
    { name: 'Refused', color: '--bad', values: of(all?.denied), fill: true },
  ];
  if (sum(all?.throttled) > 0) series.push({ name: 'Delayed', color: '--warn', values: of(all?.throttled) });
  if (sum(all?.would_deny) > 0) series.push({ name: 'Would be refused', color: '--series-4', values: of(all?.would_deny), dash: true });
  if (sum(all?.queued) > 0) series.push({ name: 'Queued', color: '--info', values: of(all?.queued) });
  return series;
}

function latencySeries(history: History, length: number): Series[] {
  const { all } = history;
  return [
    { name: 'p50', color: '--series-1', values: column(all?.p50_ms, length) },
    { name: 'p95', color: '--series-4', values: column(all?.p95_ms, length) },
    { name: 'p99', color: '--series-5', values: column(all?.p99_ms, length) },
  ];
}

/** The figures on top, as of this second. */
function Figures({ history, node: chosen }: { history: History; node: string | null }) {
  const installation = useInstallation(chosen);
  const node = useAsk({ queryKey: ['node'], queryFn: ({ signal }) => get<Node>('node', {}, signal), refetchInterval: TOP_MS });
  const now = installation.data?.decisions_per_second ?? null;
  const [allowed, refused] = [sum(history.all?.allowed) + sum(history.all?.throttled), refusals(history)];
  const share = allowed + refused === 0 ? 0 : refused / (allowed + refused);
  const lost = installation.data?.stores_lost ?? [];
  const stores = node.data?.stores.length ?? 0;
  return (
    <dl className="figures">
      <div>
        <dt>Decisions now</dt>
        <dd>
          {now === null ? '–' : rate(now)} <small>/s</small>
        </dd>
      </div>
      <div>
        <dt>Refused</dt>
        <dd className={share > 0.05 ? 'bad-ink' : ''}>
          {percent(share)} <small>{short(refused)} of {short(allowed + refused)}</small>
        </dd>
      </div>
      <div>
        <dt>p99</dt>
        <dd>
          {millis(last(history.all?.p99_ms))} <small>p50 {millis(last(history.all?.p50_ms))}</small>
        </dd>
      </div>
      <div>
        <dt>Rules</dt>
        <dd>
          {node.data ? count(node.data.rules.count) : '–'} <small>revision {node.data?.rules.revision ?? '–'}</small>
        </dd>
      </div>
      <NodesFigure />
      <div>
        <dt>Store</dt>
        <dd className={lost.length > 0 ? 'bad-ink' : 'good-ink'}>
          {lost.length > 0 ? 'Unavailable' : 'Healthy'} <small>{lost.length > 0 ? lost.join(', ') : stores === 0 ? 'in memory' : `${String(stores)} shared`}</small>
        </dd>
      </div>
      <div>
        <dt>Up</dt>
        <dd>
          {node.data ? roughly(node.data.uptime_seconds) : '–'} <small>{node.data ? `v${node.data.version}` : ''}</small>
        </dd>
      </div>
    </dl>
  );
}

/** How many nodes there are, and whether all enforce the same rules. */
function NodesFigure() {
  const nodes = useNodes();
  const agreed = nodes.data && agreement(nodes.data.items);
  // One that was stopped is not missed.
  const gone = nodes.data?.items.filter(({ is_live: isLive, is_stopped: isStopped }) => !isLive && !isStopped).length ?? 0;
  const ink = agreed && agreed.state !== 'agree' ? (agreed.state === 'other' ? 'bad-ink' : 'warn-ink') : '';
  return (
    <div>
      <dt>Nodes</dt>
      <dd className={ink} title={agreed && `${agreed.text} ${agreed.next}`.trim()}>
        {nodes.data ? count(nodes.data.items.filter(({ is_live: isLive }) => isLive).length) : '–'} {gone > 0 && <Link href="/nodes" className="link bad-ink">{count(gone)} gone</Link>} {agreed && (agreed.state === 'agree' ? <small>{agreed.short}</small> : <Link href="/nodes" className="link">{agreed.short}</Link>)}
      </dd>
    </div>
  );
}

/** What a tenant's admin sees: its own. */
function Own({ view: { axis, history }, span }: { view: View; span: Span }) {
  const { tenant_id: tenant } = useIdentity();
  const [own] = history.values;
  const series = useMemo(() => ownSeries(own, axis.length, history.step_seconds), [own, axis, history.step_seconds]);
  return (
    <>
      <dl className="figures">
        <div>
          <dt>Tenant</dt>
          <dd>{tenant}</dd>
        </div>
        <div>
          <dt>Allowed</dt>
          <dd>{short(sum(own?.allowed))}</dd>
        </div>
        <div>
          <dt>Refused</dt>
          <dd>{short(sum(own?.refused))}</dd>
        </div>
      </dl>
      <Card title={<>Requests of {tenant}</>} about="Requests per second" actions={<Legend series={series} />}>
        {own ? <TimeChart times={axis} series={series} format={perSecondText} scale={span.scale} onRange={span.setRange} onScale={span.setScale} label={`Requests of ${tenant ?? 'the tenant'}: ${count(sum(own.allowed))} allowed, ${count(sum(own.refused))} refused.`} /> : <Empty icon="overview" title="No requests yet"><p>In this span the tenant has sent none.</p></Empty>}
      </Card>
      <p className="muted">
        <Badge tone="info">Tenant admin</Badge> You see what belongs to your tenant.
      </p>
    </>
  );
}
