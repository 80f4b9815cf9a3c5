// The log of decisions as charts read it: the newest records of a range, up to a bound.
import type { Decided, Page } from './types';
import { get } from './client';

const PAGE = 1_000;
/** Pages of one chart at most: a server and a browser have to hold them. */
const MAX_PAGES = 4;

export interface LogPart {
  records: Decided[];
  /** The oldest instant that was read, in milliseconds, if there are older records in the range. */
  knownFrom: number | null;
}

export async function readLog(filter: Record<string, string>, from: number, until: number | null, signal: AbortSignal): Promise<LogPart> {
  const records: Decided[] = [];
  const query = { ...filter, from: new Date(from).toISOString(), until: until === null ? null : new Date(until).toISOString(), limit: PAGE };
  let cursor: string | null = null;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const found: Page<Decided> = await get<Page<Decided>>('decisions', { ...query, cursor }, signal);
    records.push(...found.items);
    cursor = found.next_cursor;
    if (cursor === null) return { records, knownFrom: null };
  }
  const oldest = records[records.length - 1];
  return { records, knownFrom: oldest ? Date.parse(oldest.timestamp) : null };
}
