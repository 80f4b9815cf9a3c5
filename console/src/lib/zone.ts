// The time zone that times are shown in: the reader's, or UTC. The choice is remembered by the browser.

export type Zone = 'local' | 'utc';

const KEY = 'tollgate-zone';
const OWN = Intl.DateTimeFormat().resolvedOptions().timeZone;
const listeners = new Set<() => void>();

let zone: Zone = localStorage.getItem(KEY) === 'utc' ? 'utc' : 'local';

export function currentZone(): Zone {
  return zone;
}

export function setZone(to: Zone) {
  zone = to;
  localStorage.setItem(KEY, to);
  for (const listener of listeners) listener();
}

export function subscribeZone(listener: () => void): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/** The name of the zone, for people and for the browser's own formats. */
export function zoneName(of: Zone = zone): string {
  return of === 'utc' ? 'UTC' : OWN;
}

type Format = 'instant' | 'clock' | 'minute' | 'day';

const FORMATS: Record<Format, Intl.DateTimeFormatOptions> = {
  instant: { year: 'numeric', month: '2-digit', day: '2-digit', hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' },
  clock: { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' },
  minute: { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' },
  day: { year: 'numeric', month: '2-digit', day: '2-digit' },
};
const made = new Map<string, Intl.DateTimeFormat>();

/** A time in milliseconds since 1970, in the zone that is chosen. */
export function formatTime(millis: number, format: Format): string {
  const key = `${zone} ${format}`;
  let formatter = made.get(key);
  if (!formatter) {
    formatter = new Intl.DateTimeFormat('en-CA', { ...FORMATS[format], timeZone: zoneName() });
    made.set(key, formatter);
  }
  return formatter.format(millis).replace(',', '');
}

/** An instant as an input of the type `datetime-local` has it, in the zone that is chosen; empty if it is none. */
export function toInput(text: string): string {
  const time = Date.parse(text);
  if (Number.isNaN(time)) return '';
  return new Date(zone === 'utc' ? time : time - new Date(time).getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

/** The instant that such an input means; null if it is empty. */
export function fromInput(text: string): string | null {
  const time = Date.parse(zone === 'utc' && text !== '' ? `${text}Z` : text);
  return Number.isNaN(time) ? null : new Date(time).toISOString();
}
