// A chart over time. It is made once and given new data after that, so that live data costs a redraw and no more.
import { useEffect, useRef } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { useIsDark } from './theme';

export interface Series {
  name: string;
  /** A colour of the design, such as `--good`. */
  color: string;
  values: (number | null)[];
  fill?: boolean;
  dash?: boolean;
}

/** Ten colours that are distinguishable in light and dark, also with colour blindness. */
export const PALETTE = Array.from({ length: 10 }, (_, index) => `--series-${String(index + 1)}`);

function color(element: HTMLElement, name: string, alpha?: number): string {
  const probe = document.createElement('span');
  probe.style.color = alpha === undefined ? `var(${name})` : `color-mix(in srgb, var(${name}) ${String(alpha * 100)}%, transparent)`;
  element.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const hours = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' });

function options(host: HTMLElement, series: Series[], format: (value: number) => string, height: number): uPlot.Options {
  const [ink, grid] = [color(host, '--ink-2'), color(host, '--line')];
  const font = '11px system-ui, sans-serif';
  const axis = { stroke: ink, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
  return {
    width: Math.max(120, host.clientWidth),
    height,
    padding: [8, 6, 0, 0],
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    legend: { show: false },
    scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    axes: [
      { ...axis, size: 26, gap: 4, space: 70, grid: { show: false }, values: (_, splits) => splits.map((at) => hours.format(at * 1000)) },
      { ...axis, size: 48, space: 34, values: (_, splits) => splits.map(format) },
    ],
    series: [
      {},
      ...series.map((one): uPlot.Series => ({
        label: one.name,
        stroke: color(host, one.color),
        width: 1.75,
        spanGaps: false,
        points: { show: false },
        ...(one.fill ? { fill: color(host, one.color, 0.13) } : {}),
        ...(one.dash ? { dash: [4, 4] } : {}),
      })),
    ],
  };
}

export function Chart({
  times,
  series,
  format,
  label,
  height = 220,
}: {
  times: number[];
  series: Series[];
  format: (value: number) => string;
  /** What the chart says, for those who cannot see it. */
  label: string;
  height?: number;
}) {
  const host = useRef<HTMLDivElement>(null);
  const tip = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shown = useRef({ times, series, format });
  const isDark = useIsDark();
  // The chart itself depends on what its series are; their values come and go.
  const shape = series.map(({ name, color: hue, fill, dash }) => [name, hue, fill, dash].join()).join('|');

  useEffect(() => {
    shown.current = { times, series, format };
    plot.current?.setData([times, ...series.map((one) => one.values)]);
  }, [times, series, format]);

  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const now = shown.current;
    const made = new uPlot(
      {
        ...options(element, now.series, now.format, height),
        hooks: { setCursor: [(chart) => point(chart, tip.current, shown.current)] },
      },
      [now.times, ...now.series.map((one) => one.values)],
      element,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: Math.max(120, element.clientWidth), height }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, isDark, height]);

  return (
    <div className="chart">
      <div ref={host} role="img" aria-label={label} />
      <div ref={tip} className="chart-tip" hidden aria-hidden="true" />
    </div>
  );
}

/** What is under the pointer. */
function point(chart: uPlot, tip: HTMLDivElement | null, shown: { times: number[]; series: Series[]; format: (value: number) => string }) {
  const index = chart.cursor.idx;
  if (!tip) return;
  const at = index === null || index === undefined ? undefined : shown.times[index];
  if (at === undefined || (chart.cursor.left ?? -1) < 0) {
    tip.hidden = true;
    return;
  }
  const rows = shown.series.map(({ name, color: hue, values }) => {
    const value = values[index ?? 0];
    const row = document.createElement('div');
    const mark = document.createElement('i');
    mark.style.background = `var(${hue})`;
    const text = document.createElement('span');
    text.textContent = name;
    const figure = document.createElement('b');
    figure.textContent = value === null || value === undefined ? '–' : shown.format(value);
    row.append(mark, text, figure);
    return row;
  });
  const head = document.createElement('time');
  head.textContent = clock.format(at * 1000);
  tip.replaceChildren(head, ...rows);
  tip.hidden = false;
  const left = (chart.cursor.left ?? 0) + chart.bbox.left / devicePixelRatio;
  const room = (tip.parentElement?.clientWidth ?? 0) - tip.offsetWidth - 8;
  tip.style.left = `${String(Math.min(Math.max(4, left + 14), Math.max(4, room)))}px`;
}

export function Legend({ series }: { series: { name: string; color: string; value?: string }[] }) {
  return (
    <ul className="legend">
      {series.map(({ name, color: hue, value }) => (
        <li key={name}>
          <i style={{ background: `var(${hue})` }} />
          <span>{name}</span>
          {value !== undefined && <b>{value}</b>}
        </li>
      ))}
    </ul>
  );
}
