// Paths and pages: few enough for a few lines.
import { type AnchorHTMLAttributes, type MouseEvent, useSyncExternalStore } from 'react';

const changed = 'tollgate:navigated';

/** Where the page is. The address is ahead of it while somebody is asked whether to leave. */
let here = { path: window.location.pathname, search: window.location.search };
/** Which entry of the history this is: to know the way back to it. */
let at = stampOf(history.state) ?? 0;
let isReturning = false;
history.replaceState({ at }, '');

function stampOf(state: unknown): number | null {
  const stamp = (state as { at?: unknown } | null)?.at;
  return typeof stamp === 'number' ? stamp : null;
}

function arrive() {
  here = { path: window.location.pathname, search: window.location.search };
  window.dispatchEvent(new Event(changed));
}

/** Back and forward: the address has changed already, and is put back if somebody wants to stay. */
window.addEventListener('popstate', (event) => {
  const to = stampOf(event.state);
  if (isReturning) {
    isReturning = false;
    return;
  }
  if (to !== null && to !== at && window.location.pathname !== here.path && !mayLeave()) {
    isReturning = true;
    history.go(at - to);
    return;
  }
  // An entry without a stamp is a new one, made by a link within the page.
  at = to ?? at + 1;
  if (to === null) history.replaceState({ at }, '');
  arrive();
});

window.addEventListener('beforeunload', (event) => {
  if (guard) event.preventDefault();
});

function subscribe(listener: () => void) {
  window.addEventListener(changed, listener);
  return () => window.removeEventListener(changed, listener);
}

/** Asked before the page is left. */
let guard: (() => boolean) | null = null;

export function guardLeaving(ask: (() => boolean) | null) {
  guard = ask;
}

/** Asks the guard whether the page may be left; a guard that has agreed is not asked again. */
export function mayLeave(): boolean {
  if (guard && !guard()) return false;
  guard = null;
  return true;
}

export function navigate(to: string, options: { replace?: boolean; keepScroll?: boolean } = {}) {
  const isSame = new URL(to, window.location.href).pathname === here.path;
  if (!isSame && !mayLeave()) return;
  if (options.replace) history.replaceState({ at }, '', to);
  else {
    at += 1;
    history.pushState({ at }, '', to);
  }
  arrive();
  if (!options.keepScroll) window.scrollTo(0, 0);
}

export function usePath(): string[] {
  const path = useSyncExternalStore(subscribe, () => here.path);
  return path
    .split('/')
    .filter((part) => part !== '')
    .map(decode);
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The parameters in the address, and a way to change them without a new entry in the history. */
export function useQuery(): [URLSearchParams, (changes: Record<string, string | null>) => void] {
  const search = useSyncExternalStore(subscribe, () => here.search);
  const set = (changes: Record<string, string | null>) => {
    const next = new URLSearchParams(here.search);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === '') next.delete(name);
      else next.set(name, value);
    }
    const tail = next.toString();
    history.replaceState({ at }, '', `${here.path}${tail === '' ? '' : `?${tail}`}`);
    arrive();
  };
  return [new URLSearchParams(search), set];
}

export function Link({ href, onClick, children, ...rest }: AnchorHTMLAttributes<HTMLAnchorElement> & { href: string }) {
  const follow = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (event.defaultPrevented || !plain) return;
    event.preventDefault();
    navigate(href);
  };
  return (
    <a href={href} onClick={follow} {...rest}>
      {children}
    </a>
  );
}
