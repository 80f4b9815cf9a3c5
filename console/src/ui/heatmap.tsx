// A heat map over time. A drag chooses a shorter range, as in a chart; the arrow keys move its cursor.
import { type KeyboardEvent, type PointerEvent, useEffect, useRef, useState } from 'react';
import { count, perSecondText } from '../lib/format';
import { strength } from '../lib/heat';
import { type Range, rangeBetween } from '../lib/range';
import { formatTime, zoneName } from '../lib/zone';
import { color } from './chart';
import { useIsDark } from './theme';
import { useZone } from './zone';

export interface HeatRow {
  name: string;
  /** Its upper end, for the axis. */
  tick: string;
  counts: number[];
}

interface HeatMapProps {
  /** The end of each step, in seconds since 1970. */
  times: number[];
  step: number;
  /** The lowest first. */
  rows: HeatRow[];
  most: number;
  label: string;
  unit: string;
  height?: number;
  onRange: (range: Range | null) => void;
}

const [LEFT_PX, BOTTOM_PX, TOP_PX, RIGHT_PX] = [58, 26, 12, 6];
const MIN_WIDTH_PX = 120;
/** A drag that is shorter is a click. */
const MIN_DRAG_PX = 6;
const TICK_PX = 80;
const ROW_TICK_PX = 18;

interface Cell {
  column: number;
  row: number;
}

export function HeatMap({ times, step, rows, most, label, unit, height = 220, onRange }: HeatMapProps) {
  const host = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [cell, setCell] = useState<Cell | null>(null);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const isDark = useIsDark();
  const zone = useZone();
  const plot = { left: LEFT_PX, top: TOP_PX, width: Math.max(1, width - LEFT_PX - RIGHT_PX), height: height - TOP_PX - BOTTOM_PX };

  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const watch = new ResizeObserver(() => setWidth(Math.max(MIN_WIDTH_PX, element.clientWidth)));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);

  useEffect(() => {
    if (host.current && canvas.current && width > 0) draw(host.current, canvas.current, width, height, { times, rows, most });
  }, [times, rows, most, width, height, isDark, zone]);

  const cellAt = (event: PointerEvent): Cell | null => {
    const box = event.currentTarget.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left - plot.left) / plot.width, (event.clientY - box.top - plot.top) / plot.height];
    if (x < 0 || x >= 1 || y < 0 || y >= 1) return null;
    return { column: Math.floor(x * times.length), row: rows.length - 1 - Math.floor(y * rows.length) };
  };
  const placeOf = (event: PointerEvent) => event.clientX - event.currentTarget.getBoundingClientRect().left;
  const instantAt = (px: number) => {
    const share = Math.min(1, Math.max(0, (px - plot.left) / plot.width));
    const [first, last] = [(times[0] ?? 0) - step, times[times.length - 1] ?? 0];
    return (first + share * (last - first)) * 1000;
  };
  const end = (event: PointerEvent) => {
    if (drag && Math.abs(placeOf(event) - drag.from) >= MIN_DRAG_PX) onRange(rangeBetween(instantAt(drag.from), instantAt(placeOf(event))));
    setDrag(null);
  };
  const shown = cell ?? { column: times.length - 1, row: 0 };
  const press = (event: KeyboardEvent) => {
    const moves: Record<string, Cell> = {
      ArrowLeft: { column: shown.column - 1, row: shown.row }, ArrowRight: { column: shown.column + 1, row: shown.row },
      ArrowUp: { column: shown.column, row: shown.row + 1 }, ArrowDown: { column: shown.column, row: shown.row - 1 },
    };
    const to = moves[event.key];
    if (to) setCell({ column: Math.min(times.length - 1, Math.max(0, to.column)), row: Math.min(rows.length - 1, Math.max(0, to.row)) });
    else if (event.key === 'Escape') onRange(null);
    else return;
    event.preventDefault();
  };
  const text = textOf(shown, { times, step, rows, unit });
  const left = plot.left + ((shown.column + 0.5) / Math.max(1, times.length)) * plot.width;
  return (
    <div className="chart heat">
      <div
        ref={host}
        role="slider"
        tabIndex={0}
        aria-label={label}
        aria-valuemin={0}
        aria-valuemax={Math.max(0, times.length - 1)}
        aria-valuenow={shown.column}
        aria-valuetext={text.join(', ')}
        style={{ height }}
        onKeyDown={press}
        onPointerDown={(event) => setDrag({ from: placeOf(event), to: placeOf(event) })}
        onPointerMove={(event) => {
          setCell(cellAt(event));
          if (drag) setDrag({ ...drag, to: placeOf(event) });
        }}
        onPointerUp={end}
        onPointerLeave={() => {
          setCell(null);
          setDrag(null);
        }}
        onBlur={() => setCell(null)}
        onDoubleClick={() => onRange(null)}
      >
        <canvas ref={canvas} style={{ width, height }} aria-hidden="true" />
        {drag && <div className="heat-drag" style={{ left: Math.min(drag.from, drag.to), width: Math.abs(drag.to - drag.from), top: plot.top, height: plot.height }} />}
      </div>
      {cell && (
        <div className="chart-tip" aria-hidden="true" style={left > width / 2 ? { right: Math.max(4, width - left + 14) } : { left: left + 14 }}>
          <time>{text[0]}</time>
          <div><span>{text[1]}</span><b>{text[2]}</b></div>
        </div>
      )}
      <HeatKey most={most} unit={unit} />
    </div>
  );
}

/** When, how long, how many. */
function textOf({ column, row }: Cell, { times, step, rows, unit }: Pick<HeatMapProps, 'times' | 'step' | 'rows' | 'unit'>): [string, string, string] {
  const calls = rows[row]?.counts[column] ?? 0;
  return [`${formatTime((times[column] ?? 0) * 1000, 'clock')} ${zoneName()}`, rows[row]?.name ?? '', `${count(calls)} ${unit} (${perSecondText(calls / step)})`];
}

/** What the colours mean. */
function HeatKey({ most, unit }: { most: number; unit: string }) {
  const samples = [1, Math.max(1, Math.round(Math.sqrt(most))), most].filter((one, index, all) => all.indexOf(one) === index);
  return (
    <p className="heat-key">
      {samples.map((sample) => (
        <span key={sample}><i style={{ background: `color-mix(in srgb, var(--accent) ${String(Math.round(strength(sample, most) * 100))}%, transparent)` }} />{count(sample)}</span>
      ))}
      <span>{unit} in a step</span>
    </p>
  );
}

function draw(host: HTMLElement, canvas: HTMLCanvasElement, width: number, height: number, { times, rows, most }: Pick<HeatMapProps, 'times' | 'rows' | 'most'>) {
  const ratio = devicePixelRatio;
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  const context = canvas.getContext('2d');
  if (!context) return;
  const [ink, hue, line] = [color(host, '--ink-2'), color(host, '--accent'), color(host, '--line')];
  context.scale(ratio, ratio);
  context.clearRect(0, 0, width, height);
  const [plotWidth, plotHeight] = [width - LEFT_PX - RIGHT_PX, height - TOP_PX - BOTTOM_PX];
  const [cellWidth, cellHeight] = [plotWidth / Math.max(1, times.length), plotHeight / Math.max(1, rows.length)];
  context.fillStyle = hue;
  rows.forEach(({ counts }, row) => {
    const top = TOP_PX + plotHeight - (row + 1) * cellHeight;
    counts.forEach((calls, column) => {
      if (calls <= 0) return;
      context.globalAlpha = strength(calls, most);
      // Cells meet without a seam and do not overlap: both would be stripes.
      const [from, to] = [Math.round(LEFT_PX + column * cellWidth), Math.round(LEFT_PX + (column + 1) * cellWidth)];
      const [above, below] = [Math.round(top), Math.round(top + cellHeight)];
      context.fillRect(from, above, Math.max(1, to - from), Math.max(1, below - above - 1));
    });
  });
  context.globalAlpha = 1;
  context.strokeStyle = line;
  context.beginPath();
  context.moveTo(LEFT_PX, TOP_PX + plotHeight + 0.5);
  context.lineTo(width - RIGHT_PX, TOP_PX + plotHeight + 0.5);
  context.stroke();
  context.fillStyle = ink;
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  context.textAlign = 'right';
  const skip = Math.max(1, Math.ceil(ROW_TICK_PX / cellHeight));
  rows.forEach(({ tick }, row) => {
    // A row ends where the next begins: its name stands at its upper end.
    if ((rows.length - 1 - row) % skip === 0) context.fillText(tick, LEFT_PX - 6, TOP_PX + plotHeight - (row + 1) * cellHeight + (row === rows.length - 1 ? 5 : 0));
  });
  context.textAlign = 'center';
  const every = Math.max(1, Math.ceil(times.length / Math.max(1, Math.floor(plotWidth / TICK_PX))));
  const isShort = times.length > 1 && ((times[times.length - 1] ?? 0) - (times[0] ?? 0)) < 60 * (times.length / every);
  times.forEach((at, column) => {
    if (column % every !== Math.floor(every / 2)) return;
    context.fillText(formatTime(at * 1000, isShort ? 'clock' : 'minute'), LEFT_PX + (column + 0.5) * cellWidth, height - BOTTOM_PX / 2 + 3);
  });
}
