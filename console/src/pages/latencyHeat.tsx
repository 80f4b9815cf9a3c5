// How long decisions took, as a heat map: a column for each step, a row for each range of time.
import { useMemo } from 'react';
import { count, millis } from '../lib/format';
import { heatOf } from '../lib/heat';
import type { View } from '../lib/range';
import { HeatMap } from '../ui/heatmap';
import { Empty } from '../ui/parts';
import type { Span } from './range';

function rowName(from: number, to: number | null): string {
  return to === null ? `over ${millis(from)}` : from === 0 ? `up to ${millis(to)}` : `${millis(from)} – ${millis(to)}`;
}

export function LatencyHeat({ view: { axis, history }, span }: { view: View; span: Span }) {
  const heat = useMemo(() => heatOf(history.all?.calls_by_latency, history.latency_bounds_ms ?? [], axis.length), [history, axis]);
  const rows = useMemo(() => heat.rows.map(({ from, to, counts }) => ({ name: rowName(from, to), tick: to === null ? `> ${millis(from)}` : millis(to), counts })), [heat]);
  if (rows.length === 0) return <Empty icon="overview" title="No calls in this range"><p>Choose a longer one.</p></Empty>;
  const slowest = rows[rows.length - 1];
  const total = heat.rows.reduce((sum, { counts }) => sum + counts.reduce((more, one) => more + one, 0), 0);
  return <HeatMap times={axis} step={history.step_seconds} rows={rows} most={heat.most} onRange={span.setRange} label={`Calls by the time that they took: ${count(total)} in all, the slowest ${slowest?.name ?? ''}.`} unit="calls" />;
}
