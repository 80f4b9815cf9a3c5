// Paths and pages: few enough for a few lines.
import { type AnchorHTMLAttributes, type MouseEvent, useSyncExternalStore } from 'react';

const changed = 'tollgate:navigated';

function subscribe(listener: () => void) {
  window.addEventListener('popstate', listener);
  window.addEventListener(changed, listener);
  return () => {
    window.removeEventListener('popstate', listener);
    window.removeEventListener(changed, listener);
  };
}

/** Somebody who must be asked before the page is left. */
let guard: (() => boolean) | null = null;

export function guardLeaving(ask: (() => boolean) | null) {
  guard = ask;
}

export function navigate(to: string, options: { replace?: boolean; keepScroll?: boolean } = {}) {
  if (guard && !guard()) return;
  guard = null;
  if (options.replace) history.replaceState(null, '', to);
  else history.pushState(null, '', to);
  window.dispatchEvent(new Event(changed));
  if (!options.keepScroll) window.scrollTo(0, 0);
}

export function usePath(): string[] {
  const path = useSyncExternalStore(subscribe, () => window.location.pathname);
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
  const search = useSyncExternalStore(subscribe, () => window.location.search);
  const set = (changes: Record<string, string | null>) => {
    const next = new URLSearchParams(window.location.search);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === '') next.delete(name);
      else next.set(name, value);
    }
    const tail = next.toString();
    history.replaceState(null, '', `${window.location.pathname}${tail === '' ? '' : `?${tail}`}`);
    window.dispatchEvent(new Event(changed));
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
