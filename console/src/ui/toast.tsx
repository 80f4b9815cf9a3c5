// Short words about what was done, for everyone: they are read out, and go by themselves.
import { useSyncExternalStore } from 'react';
import { Icon } from './icons';

interface Toast {
  id: number;
  text: string;
  tone: 'good' | 'bad';
}

const SHOWN_MS = 5_000;
let toasts: Toast[] = [];
let next = 1;
const listeners = new Set<() => void>();

function set(now: Toast[]) {
  toasts = now;
  for (const listener of listeners) listener();
}

export function toast(text: string, tone: Toast['tone'] = 'good') {
  const id = next;
  next += 1;
  set([...toasts.slice(-2), { id, text, tone }]);
  setTimeout(() => set(toasts.filter((one) => one.id !== id)), SHOWN_MS);
}

export function Toasts() {
  const shown = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    () => toasts,
  );
  return (
    <div className="toasts" role="status" aria-live="polite">
      {shown.map(({ id, text, tone }) => (
        <div key={id} className={`toast ${tone}`}>
          <Icon name={tone === 'good' ? 'check' : 'warn'} size={16} />
          {text}
        </div>
      ))}
    </div>
  );
}
