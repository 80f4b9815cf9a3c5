// What happens now, and what happened lately.
import { keepPreviousData, useQuery as useAsk } from '@tanstack/react-query';
import { useMemo } from 'react';
import { get } from '../api/client';
import { useConnection } from '../api/connection';
import { useIdentity, useMay } from '../api/session';
import type { Counted, History, Node, Top } from '../api/types';
import { count, millis, percent, rate, roughly, short } from '../lib/format';
import { add, column, last, type Minutes, perSecond, refreshMillis, shares, type Share, SPANS, sum, times } from '../lib/windows';
import { fromKey, type Subject } from '../lib/subject';
import { Link, useQuery } from '../router';
import { Chart, Legend, PALETTE, type Series } from '../ui/chart';
import { Badge, Card, Empty, Load, PageHead, Segmented } from '../ui/parts';
import { KeyMenu } from './acts';
import { Start } from './start';
import { Timeline } from './timeline';

const BY = [
  { value: 'scope', name: 'Scope' },
  { value: 'tenant_id', name: 'Tenant' },
  { value: 'model_id', name: 'Model' },
] as const;
type By = (typeof BY)[number]['value'];

/** The most lines of one chart. */
const MAX_SERIES = 10;
const TOP_MS = 5_000;

export default function Overview() {
  const { view } = useMay();
  const [query, setQuery] = useQuery();
  const minutes: Minutes = (SPANS.find((one) => one.minutes === Number(query.get('minutes')))?.minutes ?? 15);
  const wanted = BY.find((one) => one.value === query.get('by'))?.value ?? 'scope';
  const by: By = view ? wanted : 'tenant_id';
  const history = useAsk({
    queryKey: ['history', minutes, by],
    queryFn: ({ signal }) => get<History>('history', { minutes, by }, signal),
    refetchInterval: refreshMillis(minutes),
    placeholderData: keepPreviousData,
  });
  return (
    <>
      <PageHead title="Overview" about="What this node decided.">
        <Segmented
          label="How far back"
          value={minutes}
          options={SPANS.map(({ minutes: value, name }) => ({ value, name }))}
          onChange={(value) => setQuery({ minutes: String(value) })}
        />
      </PageHead>
      <Load query={history} rows={8}>
        {(data) => (view ? <Whole history={data} now={history.dataUpdatedAt} minutes={minutes} by={by} onBy={(value) => setQuery({ by: value })} /> : <Own history={data} now={history.dataUpdatedAt} minutes={minutes} />)}
      </Load>
    </>
  );
}

function Whole({ history, now, minutes, by, onBy }: { history: History; now: number; minutes: Minutes; by: By; onBy: (by: By) => void }) {
  const axis = useMemo(() => times(history, minutes, now), [history, minutes, now]);
  const traffic = useMemo(() => trafficSeries(history, axis.length), [history, axis]);
  const latency = useMemo(() => latencySeries(history, axis.length), [history, axis]);
  const node = useAsk({ queryKey: ['node'], queryFn: ({ signal }) => get<Node>('node', {}, signal), refetchInterval: TOP_MS });
  const { pulse } = useConnection();
  const decided = pulse?.decisions ?? node.data?.decisions;
  const total = decided ? decided.allowed + decided.denied + decided.throttled + decided.queued : null;
  const isNew = node.data?.rules.count === 0 && node.data.rules.source !== 'file';
  // Before the first request, charts have nothing to show.
  if (isNew && total === 0) return <Start isArrived={false} />;
  return (
    <>
      {isNew && total !== null && <Start isArrived />}
      <Figures history={history} />
      <div className="grid two">
        <Card title="Decisions" about="By the second" actions={<Legend series={traffic} />}>
          <Chart times={axis} series={traffic} format={rate} label={`Decisions by the second in the last ${String(minutes)} minutes: ${count(sum(history.all?.allowed))} allowed, ${count(refusals(history))} refused, ${count(sum(history.all?.would_deny))} would be refused.`} />
        </Card>
        <Card title="Time to decide" about="In the server, without the network" actions={<Legend series={latency} />}>
          <Chart times={axis} series={latency} format={millis} label={`Time to decide: p50 ${millis(last(history.all?.p50_ms))}, p95 ${millis(last(history.all?.p95_ms))}, p99 ${millis(last(history.all?.p99_ms))}.`} />
        </Card>
      </div>
      <Timeline from={axis[0] ?? now / 1000} until={axis[axis.length - 1] ?? now / 1000} />
      <Refusals history={history} axis={axis} by={by} onBy={onBy} />
      <Tops />
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
function Figures({ history }: { history: History }) {
  const { pulse, before } = useConnection();
  const node = useAsk({ queryKey: ['node'], queryFn: ({ signal }) => get<Node>('node', {}, signal), refetchInterval: TOP_MS });
  const seconds = pulse && before ? (Date.parse(pulse.at) - Date.parse(before.at)) / 1000 : 0;
  const total = (of: Node['decisions']) => of.allowed + of.denied + of.throttled + of.queued;
  const now = pulse && before && seconds > 0 ? (total(pulse.decisions) - total(before.decisions)) / seconds : null;
  const [allowed, refused] = [sum(history.all?.allowed) + sum(history.all?.throttled), refusals(history)];
  const share = allowed + refused === 0 ? 0 : refused / (allowed + refused);
  const lost = node.data?.stores.filter((store) => store.is_lost) ?? [];
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
      <div>
        <dt>Store</dt>
        <dd className={lost.length > 0 ? 'bad-ink' : 'good-ink'}>
          {lost.length > 0 ? 'Away' : 'Healthy'} <small>{stores === 0 ? 'in memory' : lost.length > 0 ? lost.map((one) => one.name).join(', ') : `${String(stores)} shared`}</small>
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

function Refusals({ history, axis, by, onBy }: { history: History; axis: number[]; by: By; onBy: (by: By) => void }) {
  const ranked = useMemo(() => shares(history).filter((one) => one.refused > 0), [history]);
  const series = useMemo(() => {
    const named = new Map(history.values.map((one) => [one.name, one]));
    return ranked.slice(0, MAX_SERIES).map(({ name }, index): Series => ({
      name,
      color: PALETTE[index] ?? '--ink-2',
      values: perSecond(column(named.get(name)?.refused, axis.length), history.step_seconds),
    }));
  }, [history, ranked, axis]);
  const word = BY.find((one) => one.value === by)?.name ?? '';
  return (
    <Card title="Refusals" about="Who is refused, and how often" actions={<Segmented label="Refusals by" value={by} options={BY} onChange={onBy} />}>
      {ranked.length === 0 ? (
        <Empty icon="check" title="Nobody was refused">
          <p>In this span every request passed.</p>
        </Empty>
      ) : (
        <div className="grid chart-table">
          <Chart times={axis} series={series} format={rate} height={240} label={`Refusals by the second, by ${word.toLowerCase()}: ${ranked.slice(0, 3).map((one) => `${one.name} ${count(one.refused)}`).join(', ')}.`} />
          <ShareTable rows={ranked.slice(0, MAX_SERIES)} word={word} by={by} />
        </div>
      )}
    </Card>
  );
}

function ShareTable({ rows, word, by }: { rows: Share[]; word: string; by: By }) {
  return (
    <table className="plain">
      <thead>
        <tr>
          <th scope="col">{word}</th>
          <th scope="col" className="right">Refused</th>
          <th scope="col" className="right">Share</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(({ name, refused, rate: share }, index) => (
          <tr key={name}>
            <td>
              <span className="keyed">
                <i style={{ background: `var(${PALETTE[index] ?? '--ink-2'})` }} />
                {by === 'tenant_id' && isNamed(name) ? <KeyMenu subject={fromKey(name, { tenant_id: name }, null)} /> : name}
              </span>
            </td>
            <td className="right">{short(refused)}</td>
            <td className="right">{percent(share)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Tops() {
  const top = useAsk({ queryKey: ['top'], queryFn: ({ signal }) => get<Top>('top', { limit: 8 }, signal), refetchInterval: TOP_MS });
  return (
    <Load query={top} rows={3}>
      {(data) => (
        <div className="grid three">
          <Card title="Rules that refuse most" about={`Used and refused, last ${roughly(data.seconds)}`}>
            <Bars
              none="No rule was met."
              isShare
              rows={[...data.rules].sort((a, b) => b.refused - a.refused || b.would_deny - a.would_deny || b.consumed - a.consumed).slice(0, 8).map((rule) => ({
                name: rule.rule_id,
                href: rule.rule_id === 'default' ? null : `/rules/${encodeURIComponent(rule.rule_id)}`,
                value: rule.consumed,
                bad: rule.refused,
                watched: rule.would_deny,
              }))}
            />
          </Card>
          <Card title="Top tenants" about="By requests">
            <Counts rows={data.tenants.map((one) => ({ ...one, subject: isNamed(one.key) ? fromKey(one.key, { tenant_id: one.key }, null) : null }))} />
          </Card>
          <Card title="Most refused keys" about="Of all rules">
            <Counts
              rows={data.rules.flatMap((rule) => rule.top_refused.map((one) => ({ ...one, subject: fromKey(one.key, one.attributes, rule.rule_id) }))).sort((a, b) => b.count - a.count).slice(0, 8)}
              none="Nobody was refused."
              bad
            />
          </Card>
        </div>
      )}
    </Load>
  );
}

/** Names under which the traffic of others is counted, too. */
const isNamed = (name: string) => name !== 'none' && name !== 'other';

function Counts({ rows, none = 'Nothing was seen.', bad = false }: { rows: (Counted & { subject: Subject | null })[]; none?: string; bad?: boolean }) {
  return <Bars none={none} rows={rows.map(({ key, count: value, subject }) => ({ name: key, href: null, subject, value: bad ? 0 : value, bad: bad ? value : 0 }))} />;
}

/** Bars next to each other; with `isShare` each is a whole of its own, as rules count in units of their own. */
function Bars({ rows, none, isShare = false }: { rows: { name: string; href: string | null; subject?: Subject | null; value: number; bad: number; watched?: number }[]; none: string; isShare?: boolean }) {
  const longest = Math.max(1, ...rows.map((row) => row.value + row.bad));
  if (rows.length === 0) return <p className="muted pad">{none}</p>;
  return (
    <ul className="bars">
      {rows.map((row) => ({ ...row, most: isShare ? Math.max(1, row.value + row.bad) : longest })).map(({ name, href, subject, value, bad, watched = 0, most }, index) => (
        <li key={`${name}-${String(index)}`}>
          <span className="bar-name" title={name}>{subject ? <KeyMenu subject={subject} /> : href ? <Link href={href}>{name}</Link> : name}</span>
          <span className="bar-value">
            {value > 0 || bad === 0 ? short(value) : ''}
            {bad > 0 && <b className="bad-ink"> {value > 0 ? '· ' : ''}{short(bad)} refused</b>}
            {watched > 0 && <span> · {short(watched)} would be refused</span>}
          </span>
          <span className="bar" aria-hidden="true">
            <i style={{ width: `${((value / most) * 100).toFixed(1)}%` }} />
            <i className="bad" style={{ width: `${((bad / most) * 100).toFixed(1)}%` }} />
          </span>
        </li>
      ))}
    </ul>
  );
}

/** What a tenant's admin sees: its own. */
function Own({ history, now, minutes }: { history: History; now: number; minutes: Minutes }) {
  const { tenant_id: tenant } = useIdentity();
  const axis = useMemo(() => times(history, minutes, now), [history, minutes, now]);
  const [own] = history.values;
  const series = useMemo((): Series[] => {
    const of = (values: number[] | undefined) => perSecond(column(values, axis.length), history.step_seconds);
    const series: Series[] = [
      { name: 'Allowed', color: '--good', values: add(of(own?.allowed), of([])), fill: true },
      { name: 'Refused', color: '--bad', values: of(own?.refused), fill: true },
    ];
    if (sum(own?.would_deny) > 0) series.push({ name: 'Would be refused', color: '--series-4', values: of(own?.would_deny), dash: true });
    return series;
  }, [own, axis, history.step_seconds]);
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
      <Card title={<>Requests of {tenant}</>} about="By the second" actions={<Legend series={series} />}>
        {own ? <Chart times={axis} series={series} format={rate} label={`Requests of ${tenant ?? 'the tenant'}: ${count(sum(own.allowed))} allowed, ${count(sum(own.refused))} refused.`} /> : <Empty icon="overview" title="No requests yet"><p>In this span the tenant has sent none.</p></Empty>}
      </Card>
      <p className="muted">
        <Badge tone="info">Tenant admin</Badge> You see what belongs to your tenant.
      </p>
    </>
  );
}
