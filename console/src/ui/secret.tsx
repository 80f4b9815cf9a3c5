// A secret that is shown once. It is kept above all pages: a session that ends, or a page that is left, does not take it along.
import { useSyncExternalStore } from 'react';
import type { Secret } from '../api/types';
import { Button, Copy, Dialog } from './parts';

let shown: Secret | null = null;
const listeners = new Set<() => void>();

export function showSecret(secret: Secret | null) {
  shown = secret;
  for (const listener of listeners) listener();
}

export function SecretOnce() {
  const secret = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    () => shown,
  );
  if (!secret) return null;
  const close = () => showSecret(null);
  return (
    <Dialog key={secret.token} title={`The token of ${secret.name}`} onClose={close}>
      <div className="stack">
        <p>Copy it now: it is shown only this once.</p>
        <div className="secret"><code>{secret.token}</code><Copy text={secret.token} /></div>
        <div className="dialog-actions"><Button kind="primary" onClick={close}>I have it</Button></div>
      </div>
    </Dialog>
  );
}
