// Whether the server answers, and the state that it reports: one stream of events for the whole page. The stream is
// closed while the page is hidden, and reconnects with growing delays when the server was unavailable.
import { useSyncExternalStore } from 'react';
import type { Pulse } from './types';

const EVENTS = '/admin/api/v1/rate-limits/events?live=true';
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
/** A stream that says nothing for so long is taken for broken: it has a word to say every second. */
const SILENCE_MS = 5_000;

export interface Connection {
  state: 'fresh' | 'live' | 'away' | 'paused';
  pulse: Pulse | null;
  /** The pulse before, to tell rates by. */
  before: Pulse | null;
  /** When the next attempt is made, while the server is away. */
  retryAt: number | null;
}

/** The wait before an attempt: doubled each time, up to a bound. */
export function backOff(attempt: number): number {
  return Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** attempt);
}

type Listener = () => void;

class Live {
  private now: Connection = { state: 'fresh', pulse: null, before: null, retryAt: null };
  private readonly listeners = new Set<Listener>();
  private readonly onRevision = new Set<Listener>();
  private source: EventSource | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private silence: ReturnType<typeof setTimeout> | undefined;
  private attempts = 0;
  private wanted = false;
  private revision: number | null = null;
  private probe: (() => Promise<unknown>) | null = null;

  get = (): Connection => this.now;

  subscribe = (listener: Listener): (() => void) => {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  };

  /** Calls the listener whenever the rules, lists or settings have changed, or may have while there was no stream. */
  whenChanged(listener: Listener): () => void {
    this.onRevision.add(listener);
    return () => void this.onRevision.delete(listener);
  }

  /** Begins to listen; without a stream, `probe` is asked instead, for those who may not have one. */
  start(probe: (() => Promise<unknown>) | null) {
    this.wanted = true;
    this.probe = probe;
    document.addEventListener('visibilitychange', this.look);
    this.look();
  }

  stop() {
    this.wanted = false;
    document.removeEventListener('visibilitychange', this.look);
    this.close();
    this.set({ state: 'fresh', pulse: null, before: null, retryAt: null });
  }

  /** A call was answered. */
  answered() {
    if (this.now.state === 'away' && !this.source) this.retryNow();
  }

  /** A call was not. */
  failed() {
    if (this.now.state !== 'away' && this.wanted) this.lost();
  }

  retryNow = () => {
    clearTimeout(this.timer);
    if (this.wanted && !this.source) this.open();
  };

  private readonly look = () => {
    if (document.visibilityState === 'hidden') {
      this.close();
      this.set({ state: 'paused', retryAt: null, before: null });
    } else if (this.wanted && !this.source) {
      this.open();
    }
  };

  private open() {
    if (this.probe) { this.ask(this.probe); return; }
    const source = new EventSource(EVENTS);
    this.source = source;
    this.listen();
    source.addEventListener('rules', (event) => {
      const { revision } = JSON.parse(event.data as string) as { revision: number | null };
      this.alive({});
      this.seen(revision);
    });
    source.addEventListener('pulse', (event) => {
      const pulse = JSON.parse(event.data as string) as Pulse;
      this.alive({ pulse, before: this.now.pulse });
    });
    source.onerror = () => this.lost();
  }

  /** For those who may not listen: a word now and then. */
  private ask(probe: () => Promise<unknown>) {
    probe().then(
      () => {
        this.alive({});
        clearTimeout(this.silence);
        this.timer = setTimeout(() => this.retryNow(), SILENCE_MS);
      },
      () => this.lost(),
    );
  }

  private listen() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.lost(), SILENCE_MS);
  }

  private alive(more: Partial<Connection>) {
    const was = this.now.state;
    this.attempts = 0;
    this.listen();
    this.set({ state: 'live', retryAt: null, ...more });
    // What changed while nobody listened is not known: everything is looked at again.
    if (was === 'away' || was === 'paused') this.tell();
  }

  private seen(revision: number | null) {
    if (this.revision !== null && this.revision !== revision) this.tell();
    this.revision = revision;
  }

  private tell() {
    for (const listener of this.onRevision) listener();
  }

  private lost() {
    this.close();
    if (!this.wanted || document.visibilityState === 'hidden') return;
    const wait = backOff(this.attempts);
    this.attempts += 1;
    this.timer = setTimeout(this.retryNow, wait);
    this.set({ state: 'away', before: null, retryAt: Date.now() + wait });
  }

  private close() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    this.source?.close();
    this.source = null;
  }

  private set(more: Partial<Connection>) {
    this.now = { ...this.now, ...more };
    for (const listener of this.listeners) listener();
  }
}

export const connection = new Live();

export function useConnection(): Connection {
  return useSyncExternalStore(connection.subscribe, connection.get);
}
