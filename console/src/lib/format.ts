// Numbers, durations and instants, as people read them.
import { formatTime } from './zone';

const LOCALE = 'en';
const whole = new Intl.NumberFormat(LOCALE);
const compact = new Intl.NumberFormat(LOCALE, { notation: 'compact', maximumFractionDigits: 1 });

export function count(value: number): string {
  return whole.format(value);
}

/** Large numbers in few characters: 12.3K. */
export function short(value: number): string {
  return Math.abs(value) < 10_000 ? whole.format(Math.round(value)) : compact.format(value);
}

/** A rate: small ones keep a digit after the point. */
export function rate(value: number): string {
  if (value > 0 && value < 0.1) return value.toPrecision(1);
  return value > 0 && value < 10 ? value.toFixed(1) : short(value);
}

/** A rate with its unit. */
export function perSecondText(value: number): string {
  return `${rate(value)}/s`;
}

export function perMinuteText(value: number): string {
  return `${rate(value)}/min`;
}

export function percent(share: number): string {
  const value = share * 100;
  if (value > 0 && value < 0.1) return '<0.1 %';
  return `${value < 10 && value % 1 !== 0 ? value.toFixed(1) : String(Math.round(value))} %`;
}

export function millis(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–';
  if (value === 0) return '0 ms';
  if (value < 1) return `${String(Math.round(value * 1000))} µs`;
  if (value < 1000) return `${value < 10 ? value.toFixed(1) : String(Math.round(value))} ms`;
  return `${(value / 1000).toFixed(1)} s`;
}

export function bytes(value: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value < 10 && unit > 0 ? value.toFixed(1) : String(Math.round(value))} ${units[unit] ?? ''}`;
}

const STEPS: [name: string, seconds: number][] = [
  ['week', 604_800],
  ['day', 86_400],
  ['hour', 3_600],
  ['minute', 60],
  ['second', 1],
];

/** A span in whole units: "minute", "5 minutes", "1 hour 30 minutes". */
export function span(seconds: number, one: 'named' | 'counted' = 'counted'): string {
  if (seconds < 1) return `${String(Math.round(seconds * 1000))} ms`;
  for (const [name, size] of STEPS) {
    if (seconds % size === 0) {
      const times = seconds / size;
      if (times === 1) return one === 'named' ? name : `1 ${name}`;
      return `${count(times)} ${name}s`;
    }
  }
  return `${seconds.toFixed(1)} seconds`;
}

/** A span in two units at most, for uptimes and waits: "3 d 4 h". */
export function roughly(seconds: number): string {
  const total = Math.max(0, Math.round(seconds));
  const parts: [string, number][] = [
    ['d', Math.floor(total / 86_400)],
    ['h', Math.floor(total / 3_600) % 24],
    ['min', Math.floor(total / 60) % 60],
    ['s', total % 60],
  ];
  const from = parts.findIndex(([, value]) => value > 0);
  if (from < 0) return '0 s';
  const shown = parts.slice(from, from + 2).filter(([, value]) => value > 0);
  return shown.map(([unit, value]) => `${String(value)} ${unit}`).join(' ');
}

/** How long ago, or how far ahead, an instant is. */
export function ago(instant: string, now: number): string {
  const seconds = (now - Date.parse(instant)) / 1000;
  if (Number.isNaN(seconds)) return '–';
  if (Math.abs(seconds) < 5) return 'now';
  return seconds > 0 ? `${first(seconds)} ago` : `in ${first(-seconds)}`;
}

const YEAR = 31_557_600;

function first(seconds: number): string {
  if (seconds >= 2 * YEAR) return `${String(Math.round(seconds / YEAR))} y`;
  const [value, unit] = roughly(seconds).split(' ');
  return `${value ?? ''} ${unit ?? ''}`;
}

/** An instant in the zone that is chosen: 2026-11-16 04:05:06. */
export function instant(text: string): string {
  const time = Date.parse(text);
  return Number.isNaN(time) ? text : formatTime(time, 'instant');
}

/** "a", "a and b", "a, b and c". */
export function list(items: string[], word = 'and'): string {
  if (items.length < 2) return items.join('');
  return `${items.slice(0, -1).join(', ')} ${word} ${items[items.length - 1] ?? ''}`;
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}
