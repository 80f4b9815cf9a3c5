// A chart with what belongs to it: a note about values that are cut off, and the same figures as a table.
import { useMemo, useState } from 'react';
import { plural } from '../lib/format';
import { heightOf, spikesOf } from '../lib/scale';
import { formatTime, zoneName } from '../lib/zone';
import { Chart, type ChartProps, type Series } from './chart';
import { type Column, Table } from './table';

export function TimeChart({ onScale, ...chart }: ChartProps & { onScale: (scale: 'full') => void }) {
  return (
    <div className="time-chart">
      <Chart {...chart} />
      <Spikes {...chart} onScale={onScale} />
      <Figures times={chart.times} series={chart.series} format={chart.format} />
    </div>
  );
}

function Spikes({ times, series, format, scale = 'fit', onScale }: ChartProps & { onScale: (scale: 'full') => void }) {
  const [top, spikes] = useMemo(() => {
    const columns = series.map((one) => one.values);
    const height = heightOf(columns, scale);
    return [height.top, spikesOf(columns, height)];
  }, [series, scale]);
  const [first, ...rest] = spikes;
  if (!first) return null;
  const most = rest.reduce((highest, one) => (one.value > highest.value ? one : highest), first);
  return (
    <p className="note spikes">
      <span><b aria-hidden="true">▲</b> {plural(spikes.length, 'step')} above {format(top)} cut off, up to {format(most.value)} at {formatTime((times[most.index] ?? 0) * 1000, 'clock')}.</span>
      <button type="button" className="link" onClick={() => onScale('full')}>Show whole</button>
    </p>
  );
}

interface Step {
  at: number;
  index: number;
}

/** The table is made when it is opened: it may be long. */
function Figures({ times, series, format }: { times: number[]; series: Series[]; format: (value: number) => string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details className="figures-table" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>As a table</summary>
      {isOpen && <StepTable times={times} series={series} format={format} />}
    </details>
  );
}

function StepTable({ times, series, format }: { times: number[]; series: Series[]; format: (value: number) => string }) {
  // The latest first; a step without any value says nothing.
  const rows = times.map((at, index): Step => ({ at, index })).filter(({ index }) => series.some(({ values }) => (values[index] ?? null) !== null)).reverse();
  const columns: Column<Step>[] = [
    { name: `Time (${zoneName()})`, width: '12rem', cell: ({ at }) => formatTime(at * 1000, 'instant') },
    ...series.map(({ name, values }): Column<Step> => ({ name, align: 'right', cell: ({ index }) => { const value = values[index] ?? null; return value === null ? '–' : format(value); } })),
  ];
  return <Table label="Figures of the chart" columns={columns} rows={rows} id={({ at }) => String(at)} />;
}
