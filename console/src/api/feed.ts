// Decisions as they are written: a stream that can be paused, of which only the newest are held.
import { useEffect, useReducer, useState } from 'react';
import type { Decided } from './types';

const FEED = '/admin/api/v1/rate-limits/decisions/feed';
/** Rows that are held; older ones are dropped. */
export const MAX_ROWS = 200;
/** A refused stream is asked for again after this time. The browser itself repeats lost ones. */
const RETRY_MS = 5_000;

export interface Feed {
  rows: Decided[];
  /** Records that came during the pause. */
  waiting: Decided[];
  isPaused: boolean;
  /** Records that fit and were left out, because they came too fast. */
  skipped: number;
  state: 'connecting' | 'live' | 'away';
}

type Event =
  | { kind: 'received'; items: Decided[]; skipped: number }
  | { kind: 'pause'; isPaused: boolean }
  | { kind: 'state'; state: Feed['state'] }
  | { kind: 'clear' };

export const EMPTY: Feed = { rows: [], waiting: [], isPaused: false, skipped: 0, state: 'connecting' };

export function next(feed: Feed, event: Event): Feed {
  switch (event.kind) {
    case 'received': {
      const put = (before: Decided[]) => [...event.items, ...before].slice(0, MAX_ROWS);
      const seen: Feed = { ...feed, state: 'live', skipped: feed.skipped + event.skipped };
      return feed.isPaused ? { ...seen, waiting: put(feed.waiting) } : { ...seen, rows: put(feed.rows) };
    }
    case 'pause':
      if (event.isPaused) return { ...feed, isPaused: true };
      return { ...feed, isPaused: false, rows: [...feed.waiting, ...feed.rows].slice(0, MAX_ROWS), waiting: [] };
    case 'state':
      return { ...feed, state: event.state };
    case 'clear':
      return { ...EMPTY, isPaused: feed.isPaused };
  }
}

export function useFeed(filters: Record<string, string>): [Feed, (isPaused: boolean) => void] {
  const query = new URLSearchParams(Object.entries(filters).filter(([name, value]) => value !== '' && name !== 'from' && name !== 'until')).toString();
  const [feed, send] = useReducer(next, EMPTY);
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    const source = new EventSource(`${FEED}${query === '' ? '' : `?${query}`}`);
    let timer: ReturnType<typeof setTimeout> | undefined;
    source.addEventListener('start', () => send({ kind: 'state', state: 'live' }));
    source.addEventListener('decisions', (event) => {
      const { items, skipped } = JSON.parse(event.data as string) as { items: Decided[]; skipped: number };
      send({ kind: 'received', items, skipped });
    });
    source.onerror = () => {
      send({ kind: 'state', state: 'away' });
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(() => setAttempt((count) => count + 1), RETRY_MS);
    };
    return () => {
      clearTimeout(timer);
      source.close();
    };
  }, [query, attempt]);
  // Rows of another filter do not belong to the new one.
  useEffect(() => () => send({ kind: 'clear' }), [query]);
  return [feed, (isPaused) => send({ kind: 'pause', isPaused })];
}
