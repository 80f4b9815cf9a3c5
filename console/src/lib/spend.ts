// The ledger of usage, by day and in all.
import { nanosOf } from './money';

const DAY_MS = 86_400_000;

/** What of a row of a report is looked at here. */
export interface Spent {
  day?: string | null | undefined;
  currency: string | null;
  money: string | null;
  requests: number;
  refusals: number;
  tokens: number;
}

export interface Totals {
  requests: number;
  refusals: number;
  tokens: number;
  /** In billionths, by currency. Currencies are never added up. */
  money: Map<string, number>;
}

/** Money of a row in billionths. What is too large to be exact is as exact as a number can be. */
export function spentNanos({ money }: Spent): number {
  if (money === null) return 0;
  return nanosOf(money) ?? Math.round(Number(money) * 1e9);
}

export function totals(rows: Spent[]): Totals {
  const sums: Totals = { requests: 0, refusals: 0, tokens: 0, money: new Map() };
  for (const row of rows) {
    sums.requests += row.requests;
    sums.refusals += row.refusals;
    sums.tokens += row.tokens;
    if (row.currency !== null) sums.money.set(row.currency, (sums.money.get(row.currency) ?? 0) + spentNanos(row));
  }
  return sums;
}

/** The days of a report, the last one before `until`, as instants of UTC in milliseconds. */
export function daysBetween(from: string, until: string): number[] {
  const [first, end] = [Date.parse(`${from}T00:00:00Z`), Date.parse(`${until}T00:00:00Z`)];
  return Array.from({ length: Math.max(0, Math.round((end - first) / DAY_MS)) }, (_, place) => first + place * DAY_MS);
}

/** What was spent in a currency on each of these days, in billionths. */
export function byDay(rows: Spent[], currency: string, days: number[]): number[] {
  const sums = new Map<number, number>();
  for (const row of rows) {
    if (row.currency !== currency || !row.day) continue;
    const day = Date.parse(`${row.day}T00:00:00Z`);
    sums.set(day, (sums.get(day) ?? 0) + spentNanos(row));
  }
  return days.map((day) => sums.get(day) ?? 0);
}

/**
 * What a month comes to if it continues as it has begun: the spend so far, by the share of the month that is over. Null in the
 * first hours, which say nothing.
 */
export function forecast(spent: number, now: number): number | null {
  const date = new Date(now);
  const begin = Date.UTC(date.getUTCFullYear(), date.getUTCMonth(), 1);
  const end = Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1, 1);
  const passed = now - begin;
  return passed < DAY_MS / 2 ? null : (spent * (end - begin)) / passed;
}
