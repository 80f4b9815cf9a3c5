// History as charts need it: steps with their times, rates by the second, shares.
import type { History } from '../api/types';
import type { Series } from '../ui/chart';

/** The spans that can be looked at, in minutes. */
export const SPANS = [
  { minutes: 5, name: '5 min' },
  { minutes: 15, name: '15 min' },
  { minutes: 60, name: '1 h' },
  { minutes: 360, name: '6 h' },
  { minutes: 1440, name: '24 h' },
] as const;

export type Minutes = (typeof SPANS)[number]['minutes'];

/** How often to ask: once a step, as nothing changes in between. */
export function refreshMillis(minutes: number): number {
  return minutes <= 60 ? 5_000 : 60_000;
}

/** The end of each step, in seconds since 1970, for a whole window: what lies before the node's start is empty. */
export function times(history: History, minutes: number, now: number): number[] {
  const step = history.step_seconds;
  const until = history.until === null ? now / 1000 : Date.parse(history.until) / 1000;
  const steps = Math.max(1, Math.floor((minutes * 60) / step));
  return Array.from({ length: steps }, (_, index) => until - (steps - 1 - index) * step);
}

/** A column brought to the length of the window; what is not known is a gap. */
export function column(values: readonly (number | null)[] | undefined, length: number): (number | null)[] {
  const known = (values ?? []).slice(-length);
  return [...Array.from({ length: length - known.length }, () => null), ...known];
}

/** Counts of steps as rates by the second. */
export function perSecond(values: (number | null)[], stepSeconds: number): (number | null)[] {
  return values.map((value) => (value === null ? null : value / stepSeconds));
}

export function sum(values: readonly (number | null)[] | undefined): number {
  return (values ?? []).reduce<number>((total, value) => total + (value ?? 0), 0);
}

/** Allowed, refused, and what would be refused, by the second. */
export function ownSeries(own: History['values'][number] | undefined, length: number, stepSeconds: number): Series[] {
  const of = (values: number[] | undefined) => perSecond(column(values, length), stepSeconds);
  const series: Series[] = [
    { name: 'Allowed', color: '--good', values: of(own?.allowed), fill: true },
    { name: 'Refused', color: '--bad', values: of(own?.refused), fill: true },
  ];
  if (sum(own?.would_deny) > 0) series.push({ name: 'Would be refused', color: '--series-4', values: of(own?.would_deny), dash: true });
  return series;
}

export interface Share {
  name: string;
  allowed: number;
  refused: number;
  wouldDeny: number;
  /** Refused of all, 0 to 1. */
  rate: number;
}

/** Who was refused how often, those with the most refusals first. */
export function shares(history: History): Share[] {
  return history.values
    .map(({ name, allowed, refused, would_deny: watched }) => {
      const [yes, no] = [sum(allowed), sum(refused)];
      return { name, allowed: yes, refused: no, wouldDeny: sum(watched), rate: yes + no === 0 ? 0 : no / (yes + no) };
    })
    .sort((a, b) => b.refused - a.refused || b.allowed - a.allowed);
}

/** The last value that is known. */
export function last(values: readonly (number | null)[] | undefined): number | null {
  if (!values) return null;
  for (let index = values.length - 1; index >= 0; index -= 1) {
    const value = values[index];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}
