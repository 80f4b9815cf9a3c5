// Light, dark, or as the system says.
import { useSyncExternalStore } from 'react';
import { Icon, type IconName } from './icons';

type Theme = 'system' | 'light' | 'dark';
const KEY = 'tollgate-theme';
const ORDER: Theme[] = ['system', 'light', 'dark'];
const ICONS: Record<Theme, IconName> = { system: 'system', light: 'sun', dark: 'moon' };
const listeners = new Set<() => void>();

function stored(): Theme {
  const value = localStorage.getItem(KEY);
  return value === 'light' || value === 'dark' ? value : 'system';
}

let theme: Theme = stored();

export function applyTheme() {
  const root = document.documentElement;
  if (theme === 'system') root.removeAttribute('data-theme');
  else root.dataset['theme'] = theme;
}

function setTheme(to: Theme) {
  theme = to;
  localStorage.setItem(KEY, to);
  applyTheme();
  for (const listener of listeners) listener();
}

const dark = window.matchMedia('(prefers-color-scheme: dark)');

function subscribe(listener: () => void) {
  listeners.add(listener);
  dark.addEventListener('change', listener);
  return () => {
    listeners.delete(listener);
    dark.removeEventListener('change', listener);
  };
}

export function useIsDark(): boolean {
  return useSyncExternalStore(subscribe, () => (theme === 'system' ? dark.matches : theme === 'dark'));
}

export function ThemeSwitch() {
  const now = useSyncExternalStore(subscribe, () => theme);
  const next = ORDER[(ORDER.indexOf(now) + 1) % ORDER.length] ?? 'system';
  return (
    <button type="button" className="button quiet square" onClick={() => setTheme(next)} aria-label={`Theme: ${now}. Switch to ${next}`} title={`Theme: ${now}`}>
      <Icon name={ICONS[now]} />
    </button>
  );
}
