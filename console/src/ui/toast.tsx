// Short messages about what was done: they are read out, disappear by themselves, and may offer a way back.
import { useState, useSyncExternalStore } from 'react';
import { Icon } from './icons';

interface Toast {
  id: number;
  text: string;
  tone: 'good' | 'bad';
  /** Takes back what was done. */
  undo?: (() => Promise<unknown>) | undefined;
}

const SHOWN_MS = 5_000;
/** How long something can be taken back. */
export const UNDO_MS = 10_000;
let toasts: Toast[] = [];
let next = 1;
const listeners = new Set<() => void>();

function set(now: Toast[]) {
  toasts = now;
  for (const listener of listeners) listener();
}

const drop = (id: number) => set(toasts.filter((one) => one.id !== id));

export function toast(text: string, tone: Toast['tone'] = 'good', undo?: Toast['undo']) {
  const id = next;
  next += 1;
  set([...toasts.slice(-2), { id, text, tone, undo }]);
  setTimeout(() => drop(id), undo ? UNDO_MS : SHOWN_MS);
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
      {shown.map((one) => (
        <div key={one.id} className={`toast ${one.tone}`}>
          <Icon name={one.tone === 'good' ? 'check' : 'warn'} size={16} />
          <span>{one.text}</span>
          {one.undo && <Undo toast={one} undo={one.undo} />}
        </div>
      ))}
    </div>
  );
}

function Undo({ toast: { id, text }, undo }: { toast: Toast; undo: () => Promise<unknown> }) {
  const [isBusy, setBusy] = useState(false);
  const back = () => {
    setBusy(true);
    undo().then(
      () => {
        drop(id);
        toast('Undone.');
      },
      (error: unknown) => {
        drop(id);
        toast(`Not undone: ${error instanceof Error ? error.message : 'something went wrong'}`, 'bad');
      },
    );
  };
  return (
    <button type="button" className="toast-undo" disabled={isBusy} aria-label={`Undo: ${text}`} onClick={back}>
      Undo
    </button>
  );
}
