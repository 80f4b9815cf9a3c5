// Series made of the log of decisions: of refusals by rule or by reason, which the history of a node does not have.
import type { Decided } from '../api/types';

export type LogKey = 'rule_id' | 'reason' | 'result';

/** A deny list refuses without a rule. */
export const NO_RULE = 'no rule';

export interface LogSeries {
  name: string;
  total: number;
  /** Decisions in each step; what lies before the oldest record that was read is not known. */
  values: (number | null)[];
}

/** Of a record that stands for repeats: how many are in no other record. */
function weight({ count, kept }: Decided): number {
  return Math.max(0, count - (kept ?? 0));
}

/**
 * Counts records into steps that end at `axis`. A record that stands for repeats is spread evenly from its first to
 * its last. `knownFrom` is the oldest instant that was read, in milliseconds.
 */
export function logSeries(records: Decided[], by: LogKey, axis: number[], stepSeconds: number, knownFrom: number | null): LogSeries[] {
  const begin = (axis[0] ?? 0) - stepSeconds;
  const place = (millis: number) => Math.ceil((millis / 1000 - begin) / stepSeconds) - 1;
  const unknown = knownFrom === null ? 0 : Math.min(axis.length, Math.max(0, place(knownFrom)));
  const series = new Map<string, LogSeries>();
  for (const record of records) {
    const name = record[by] ?? NO_RULE;
    let one = series.get(name);
    if (!one) {
      one = { name, total: 0, values: axis.map((_, index) => (index < unknown ? null : 0)) };
      series.set(name, one);
    }
    const [first, last] = [place(Date.parse(record.first_at ?? record.timestamp)), place(Date.parse(record.timestamp))];
    const share = weight(record) / (last - first + 1);
    for (let index = Math.max(unknown, first); index <= Math.min(last, axis.length - 1); index += 1) {
      one.values[index] = (one.values[index] ?? 0) + share;
      one.total += share;
    }
  }
  return [...series.values()].filter(({ total }) => total > 0).sort((a, b) => b.total - a.total || a.name.localeCompare(b.name));
}
