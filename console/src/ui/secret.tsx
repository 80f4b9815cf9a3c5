// A secret that is shown once. It is kept above all pages: a session that ends, or a page that is left, does not take it along.
import { type ReactNode, useSyncExternalStore } from 'react';
import { Button, Copy, Dialog } from './parts';

export interface ShownSecret {
  title: string;
  secret: string;
  /** How it is used, or what becomes of the one before. */
  about?: ReactNode;
}

let shown: ShownSecret | null = null;
const listeners = new Set<() => void>();

export function showSecret(secret: ShownSecret | null) {
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
    <Dialog key={secret.secret} title={secret.title} onClose={close}>
      <div className="stack">
        <p>Copy it now: it is shown only this once.</p>
        <div className="secret"><code>{secret.secret}</code><Copy text={secret.secret} /></div>
        {secret.about && <p className="muted">{secret.about}</p>}
        <div className="dialog-actions"><Button kind="primary" onClick={close}>I have it</Button></div>
      </div>
    </Dialog>
  );
}
