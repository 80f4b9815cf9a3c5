// A chart over time. It is made once and given new data after that, so that live data costs a redraw and no more.
// A drag over it, or + at its cursor, chooses a shorter range; the arrow keys move the cursor.
import { type KeyboardEvent, useEffect, useMemo, useRef, useState } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { type Range, rangeBetween, zoomed } from '../lib/range';
import { heightOf, linearBelow, logTicks, type Scale, spikesOf } from '../lib/scale';
import { formatTime, zoneName } from '../lib/zone';
import { useIsDark } from './theme';
import { useZone } from './zone';

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

/** A drag that is shorter is a click. */
const MIN_DRAG_PX = 6;
/** Logarithmic, and linear near zero. The library names it in an enum that exists for the compiler alone. */
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
const ARCSINH: NonNullable<uPlot.Scale['distr']> = 4;
const MIN_WIDTH_PX = 120;
const ZOOM_STEP = 0.5;
const DAY_SECONDS = 86_400;

export interface ChartProps {
  times: number[];
  series: Series[];
  /** A value with its unit. */
  format: (value: number) => string;
  /** What the chart says, for those who cannot see it. */
  label: string;
  scale?: Scale;
  height?: number;
  /** Called with the range that was chosen; null is the way back. */
  onRange?: (range: Range | null) => void;
}

type Shown = Pick<ChartProps, 'times' | 'series' | 'format' | 'onRange'> & { top: number; spikes: { index: number }[] };

/** A colour of the design as a canvas takes it. */
export function color(element: HTMLElement, name: string, alpha?: number): string {
  const probe = document.createElement('span');
  probe.style.color = alpha === undefined ? `var(${name})` : `color-mix(in srgb, var(${name}) ${String(alpha * 100)}%, transparent)`;
  element.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/** The names of times on the axis: hours, and days where it is long enough. */
function timeNames(splits: number[]): string[] {
  const [first = 0, last = 0] = [splits[0], splits[splits.length - 1]];
  const span = last - first;
  return splits.map((at) => formatTime(at * 1000, span > DAY_SECONDS ? 'day' : span < 60 * splits.length ? 'clock' : 'minute'));
}

function options(host: HTMLElement, shown: { current: Shown }, scale: Scale, height: number): uPlot.Options {
  const { series, format, onRange } = shown.current;
  const [ink, grid, mark] = [color(host, '--ink-2'), color(host, '--line'), color(host, '--bad')];
  const font = '11px system-ui, sans-serif';
  const axis = { stroke: ink, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
  const top = () => shown.current.top;
  const zone = zoneName();
  return {
    width: Math.max(MIN_WIDTH_PX, host.clientWidth),
    height,
    padding: [12, 6, 0, 0],
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), zone),
    cursor: { y: false, points: { size: 6 }, drag: { x: onRange !== undefined, y: false, setScale: false } },
    legend: { show: false },
    scales: {
      y: scale === 'log' ? { distr: ARCSINH, asinh: linearBelow(series.map((one) => one.values)), range: () => [0, top()] } : { range: () => [0, top()] },
    },
    axes: [
      { ...axis, size: 26, gap: 4, space: 70, grid: { show: false }, values: (_, splits) => timeNames(splits) },
      { ...axis, size: 58, space: 34, values: (_, splits) => splits.map(format), ...(scale === 'log' ? { splits: () => logTicks(linearBelow(series.map((one) => one.values)), top()), filter: (_: uPlot, splits: number[]) => splits } : {}) },
    ],
    series: [
      {},
      ...series.map((one): uPlot.Series => ({
        label: one.name,
        stroke: color(host, one.color),
        width: 1.75,
        spanGaps: false,
        // A value between two gaps is a point, or it could not be seen.
        points: { show: false },
        ...(one.fill ? { fill: color(host, one.color, 0.13) } : {}),
        ...(one.dash ? { dash: [4, 4] } : {}),
      })),
    ],
    hooks: { draw: [(chart) => drawSpikes(chart, shown.current, mark)] },
  };
}

/** A mark at the top for each value that is cut off. */
function drawSpikes(chart: uPlot, { times, spikes }: Shown, ink: string) {
  const { ctx, bbox } = chart;
  const size = 5 * devicePixelRatio;
  ctx.save();
  ctx.fillStyle = ink;
  for (const { index } of spikes) {
    const left = chart.valToPos(times[index] ?? 0, 'x', true);
    ctx.beginPath();
    ctx.moveTo(left, bbox.top - size);
    ctx.lineTo(left - size, bbox.top + size / 2);
    ctx.lineTo(left + size, bbox.top + size / 2);
    ctx.fill();
  }
  ctx.restore();
}

/** The range of the box that was dragged. */
function chosenRange(chart: uPlot): Range | null {
  const { left, width } = chart.select;
  if (width < MIN_DRAG_PX) return null;
  return rangeBetween(chart.posToVal(left, 'x') * 1000, chart.posToVal(left + width, 'x') * 1000);
}

export function Chart({ times, series, format, label, scale = 'fit', height = 220, onRange }: ChartProps) {
  const host = useRef<HTMLDivElement>(null);
  const tip = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [cursor, setCursor] = useState<number | null>(null);
  const columns = useMemo(() => series.map((one) => one.values), [series]);
  const fitted = useMemo(() => heightOf(columns, scale), [columns, scale]);
  const spikes = useMemo(() => spikesOf(columns, fitted), [columns, fitted]);
  const now: Shown = { times, series, format, onRange, top: fitted.top, spikes };
  const shown = useRef(now);
  const isDark = useIsDark();
  const zone = useZone();
  // The chart itself depends on what its series are; their values come and go.
  const shape = series.map(({ name, color: hue, fill, dash }) => [name, hue, fill, dash].join()).join('|');

  useEffect(() => {
    shown.current = { times, series, format, onRange, top: fitted.top, spikes };
    plot.current?.setData([times, ...columns]);
  }, [times, series, columns, format, onRange, fitted, spikes]);

  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const { hooks, ...rest } = options(element, shown, scale, height);
    const made = new uPlot(
      {
        ...rest,
        hooks: {
          ...hooks,
          setCursor: [(chart) => point(chart, tip.current, shown.current)],
          setSelect: [
            (chart) => {
              const range = chosenRange(chart);
              chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              if (range) shown.current.onRange?.(range);
            },
          ],
        },
      },
      [shown.current.times, ...shown.current.series.map((one) => one.values)],
      element,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: Math.max(MIN_WIDTH_PX, element.clientWidth), height }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, isDark, zone, scale, height]);

  const last = Math.max(0, times.length - 1);
  const place = Math.min(cursor ?? last, last);
  const move = (to: number) => {
    const index = Math.min(last, Math.max(0, to));
    setCursor(index);
    const chart = plot.current;
    chart?.setCursor({ left: chart.valToPos(times[index] ?? 0, 'x'), top: 0 });
  };
  const steps: Record<string, number> = { ArrowLeft: place - 1, ArrowRight: place + 1, PageUp: place - 10, PageDown: place + 10, Home: 0, End: last };
  const press = (event: KeyboardEvent) => {
    const to = steps[event.key];
    const whole = { from: (times[0] ?? 0) * 1000, until: (times[last] ?? 0) * 1000 };
    const at = (times[place] ?? 0) * 1000;
    if (to !== undefined) move(to);
    else if (event.key === '+' || event.key === '=') onRange?.(zoomed(whole, at, ZOOM_STEP));
    else if (event.key === '-') onRange?.(zoomed(whole, at, 1 / ZOOM_STEP));
    else if (event.key === 'Escape') onRange?.(null);
    else return;
    event.preventDefault();
  };
  return (
    <div className="chart">
      <div
        ref={host}
        role="slider"
        tabIndex={0}
        aria-label={label}
        aria-valuemin={0}
        aria-valuemax={last}
        aria-valuenow={place}
        aria-valuetext={valueText(now, place)}
        onKeyDown={press}
        onBlur={() => tip.current && (tip.current.hidden = true)}
        onDoubleClick={() => onRange?.(null)}
      />
      <div ref={tip} className="chart-tip" hidden aria-hidden="true" />
    </div>
  );
}

const figure = (format: Shown['format'], value: number | null | undefined) => (value === null || value === undefined ? '–' : format(value));

function valueText({ times, series, format }: Shown, index: number): string {
  const at = times[index];
  if (at === undefined) return 'No values';
  return `${formatTime(at * 1000, 'clock')}: ${series.map(({ name, values }) => `${name} ${figure(format, values[index])}`).join(', ')}`;
}

/** What is under the cursor. */
function point(chart: uPlot, tip: HTMLDivElement | null, { times, series, format }: Shown) {
  const index = chart.cursor.idx;
  if (!tip) return;
  const at = index === null || index === undefined ? undefined : times[index];
  if (at === undefined || (chart.cursor.left ?? -1) < 0) {
    tip.hidden = true;
    return;
  }
  const rows = series.map(({ name, color: hue, values }) => {
    const row = document.createElement('div');
    const mark = document.createElement('i');
    mark.style.background = `var(${hue})`;
    const text = document.createElement('span');
    text.textContent = name;
    const value = document.createElement('b');
    value.textContent = figure(format, values[index ?? 0]);
    row.append(mark, text, value);
    return row;
  });
  const head = document.createElement('time');
  head.textContent = `${formatTime(at * 1000, 'clock')} ${zoneName()}`;
  tip.replaceChildren(head, ...rows);
  tip.hidden = false;
  const left = (chart.cursor.left ?? 0) + chart.bbox.left / devicePixelRatio;
  const room = (tip.parentElement?.clientWidth ?? 0) - tip.offsetWidth - 8;
  tip.style.left = `${String(Math.min(Math.max(4, left + 14), Math.max(4, room)))}px`;
}

export function Legend({ series }: { series: { name: string; color: string; value?: string; dash?: boolean }[] }) {
  return (
    <ul className="legend">
      {series.map(({ name, color: hue, value, dash }) => (
        <li key={name}>
          <i className={dash ? 'dash' : ''} style={{ backgroundColor: `var(${hue})` }} />
          <span>{name}</span>
          {value !== undefined && <b>{value}</b>}
        </li>
      ))}
    </ul>
  );
}
