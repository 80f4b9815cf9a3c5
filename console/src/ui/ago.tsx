// How long ago something was, kept right while one looks.
import { useSyncExternalStore } from 'react';
import { ago, instant } from '../lib/format';

const TICK_MS = 5_000;
let now = Date.now();
const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;

function subscribe(listener: () => void) {
  if (listeners.size === 0) now = Date.now();
  listeners.add(listener);
  timer ??= setInterval(() => {
    now = Date.now();
    for (const one of listeners) one();
  }, TICK_MS);
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
}

/** The time now, in milliseconds, some seconds old at most. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}

export function Ago({ at }: { at: string }) {
  const shown = useNow();
  // What has just come from the server may be younger than the last tick.
  return <time dateTime={at} title={instant(at)}>{ago(at, shown)}</time>;
}
