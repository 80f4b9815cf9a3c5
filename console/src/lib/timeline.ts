// Incidents and changes as marks on a span of time.
import type { Change, Incidents } from '../api/types';

export interface Mark {
  id: string;
  at: string;
  title: string;
  text: string;
  href: string | null;
  isIncident: boolean;
  isOpen: boolean;
  /** Where it is in the span, in percent. */
  left: number;
  width: number;
}

const SHOWN = new Set(['rule', 'setting', 'whitelist', 'blacklist', 'tier', 'grant']);

/** The marks of a span in seconds since 1970, the latest first. */
export function marksOf(incidents: Incidents['items'], changes: Change[], from: number, until: number): Mark[] {
  const length = Math.max(1, until - from);
  const place = (seconds: number) => Math.min(100, Math.max(0, ((seconds - from) / length) * 100));
  const marks: Mark[] = [];
  for (const one of incidents) {
    const [begin, end] = [Date.parse(one.since) / 1000, one.until === null ? until : Date.parse(one.until) / 1000];
    if (end < from || (begin > until && one.until !== null)) continue;
    const left = place(begin);
    marks.push({ id: `${one.kind}-${one.since}`, at: one.since, title: one.title, text: one.text, href: null, isIncident: true, isOpen: one.until === null, left, width: place(end) - left });
  }
  for (const one of changes) {
    const at = Date.parse(one.timestamp) / 1000;
    if (at < from || !SHOWN.has(one.kind)) continue;
    const href = one.kind === 'rule' ? `/rules/${encodeURIComponent(one.entry_id)}?tab=versions` : `/audit?entry_id=${encodeURIComponent(one.entry_id)}`;
    marks.push({ id: `change-${String(one.id)}`, at: one.timestamp, title: `${one.action} ${one.entry_id}`, text: `by ${one.actor}`, href, isIncident: false, isOpen: false, left: place(at), width: 0 });
  }
  return marks.sort((a, b) => Number(b.isOpen) - Number(a.isOpen) || Date.parse(b.at) - Date.parse(a.at));
}
