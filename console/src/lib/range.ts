// The range of time that charts show: the latest minutes, or two instants of the address.
import type { History } from '../api/types';
import { times } from './windows';

export interface Range {
  /** Milliseconds since 1970. */
  from: number;
  until: number;
}

/** How far back a node remembers. */
const MAX_MINUTES = 1_440;
const MINUTE_MS = 60_000;
export const HISTORY_MS = MAX_MINUTES * MINUTE_MS;
/** Clocks of browsers and servers differ. */
const SLACK_MS = MINUTE_MS;
/** No range is shorter than three of the shortest steps. */
export const MIN_RANGE_MS = 15_000;

/** The range of an address, or why there is none. There is nothing to see of what is older than `maxAgeMs`. */
export function rangeOf(from: string | null, until: string | null, now: number, maxAgeMs: number | null): { range: Range | null; problem: string | null } {
  if ((from ?? '') === '' && (until ?? '') === '') return { range: null, problem: null };
  const wrong = (problem: string) => ({ range: null, problem });
  if ((from ?? '') === '') return wrong('The range has no beginning.');
  const range = { from: Date.parse(from ?? ''), until: until === null ? now : Date.parse(until) };
  if (Number.isNaN(range.from) || Number.isNaN(range.until)) return wrong('The range of the address cannot be read.');
  if (range.from >= range.until) return wrong('The range ends before it begins.');
  if (range.from > now + SLACK_MS) return wrong('The range is in the future.');
  if (maxAgeMs !== null && range.until < now - maxAgeMs) return wrong('The range is older than the 24 hours that a node remembers. The log of decisions goes further back.');
  return { range, problem: null };
}

/** How many minutes back to ask for, to see a range whole. */
export function minutesFor(range: Range, now: number): number {
  return Math.min(MAX_MINUTES, Math.max(1, Math.ceil((now - range.from) / MINUTE_MS) + 1));
}

/** A range between two instants, made long enough and brought into order. */
export function rangeBetween(a: number, b: number): Range {
  const [from, until] = a < b ? [a, b] : [b, a];
  const missing = Math.max(0, MIN_RANGE_MS - (until - from)) / 2;
  return { from: Math.floor(from - missing), until: Math.ceil(until + missing) };
}

/** A range half or twice as long, around one of its instants. */
export function zoomed({ from, until }: Range, at: number, factor: number): Range {
  return rangeBetween(at - (at - from) * factor, at + (until - at) * factor);
}

/** A chart of the log has about so many steps, none shorter than the shortest of a history. */
const LOG_STEPS = 120;
const MIN_STEP_SECONDS = 5;

/** The steps of a range for a chart of the log; they begin at whole steps of the clock, so that values stay where they are. */
export function stepsOf({ from, until }: Range): { axis: number[]; step: number } {
  const length = (until - from) / 1000;
  const step = Math.max(MIN_STEP_SECONDS, Math.ceil(length / LOG_STEPS / MIN_STEP_SECONDS) * MIN_STEP_SECONDS);
  const [first, last] = [Math.floor(from / 1000 / step) + 1, Math.ceil(until / 1000 / step)];
  return { axis: Array.from({ length: Math.max(1, last - first + 1) }, (_, index) => (first + index) * step), step };
}

export interface View {
  /** The end of each step, in seconds since 1970. */
  axis: number[];
  history: History;
}

/** The part of a history that lies in a range; all of its minutes without one. */
export function viewOf(history: History, minutes: number, now: number, range: Range | null): View {
  const axis = times(history, minutes, now);
  if (!range) return { axis, history };
  const first = axis.findIndex((at) => at * 1000 >= range.from);
  const after = axis.findIndex((at) => at * 1000 > range.until);
  const [begin, end] = [first < 0 ? axis.length : first, after < 0 ? axis.length : after];
  const cut = <T,>(values: T[]): T[] => {
    // Columns end with the window, and may begin later.
    const missing = axis.length - values.length;
    return values.slice(Math.max(0, begin - missing), Math.max(0, end - missing));
  };
  // Calls by their latency are columns in rows.
  const cutAny = (values: unknown[]) => (Array.isArray(values[0]) ? (values as number[][]).map(cut) : cut(values));
  const all = history.all && Object.fromEntries(Object.entries(history.all).map(([name, values]) => [name, cutAny(values)]));
  return {
    axis: axis.slice(begin, end),
    history: {
      ...history,
      ...(all ? { all: all as NonNullable<History['all']> } : {}),
      values: history.values.map((one) => ({ ...one, allowed: cut(one.allowed), refused: cut(one.refused), would_deny: cut(one.would_deny) })),
    },
  };
}
