// What is done with a virtual key: a new secret, an end, a new beginning.
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { call, segment } from '../api/client';
import { useMay } from '../api/session';
import type { VirtualKey } from '../api/types';
import { instant } from '../lib/format';
import { OVERLAPS } from '../lib/key';
import { navigate } from '../router';
import { Button, Confirm, Dialog, Fault, Field, sentence } from '../ui/parts';
import { showSecret } from '../ui/secret';
import { toast } from '../ui/toast';

export type KeyAct = 'rotate' | 'revoke';

/** A tenant's admins may stop every key of their tenant, and change or enable only those that they made. */
export function useMayChange(entry: VirtualKey): boolean {
  const may = useMay();
  return may.keys && (!may.isTenant || entry.managed_by === 'tenant');
}

export function KeyActs({ what, entry, onClose }: { what: KeyAct; entry: VirtualKey; onClose: () => void }) {
  return what === 'rotate' ? <Rotate entry={entry} onClose={onClose} /> : <Revoke entry={entry} onClose={onClose} />;
}

/** Shows the secret of a key that was just made or rotated. */
export function showKey(made: VirtualKey) {
  if (made.secret === undefined) return;
  const until = made.previous_secret_until;
  const about = <>Clients send it as <code>Authorization: Bearer</code> or <code>x-api-key</code>. {until && `The previous secret is accepted until ${instant(until)}.`}</>;
  showSecret({ title: `The secret of ${made.name}`, secret: made.secret, about });
}

const path = (entry: VirtualKey, act = '') => `keys/${segment(entry.id)}${act === '' ? '' : `/${act}`}`;

function useRefresh() {
  const queries = useQueryClient();
  return async () => {
    await Promise.all(['keys', 'key', 'key-use', 'client'].map((name) => queries.invalidateQueries({ queryKey: [name] })));
  };
}

function Rotate({ entry, onClose }: { entry: VirtualKey; onClose: () => void }) {
  const refresh = useRefresh();
  const [overlap, setOverlap] = useState('1h');
  const rotate = useMutation({
    mutationFn: () => call<VirtualKey>('POST', path(entry, 'rotate'), { body: overlap === '' ? {} : { overlap }, ifVersion: entry.version }),
    onSuccess: (made) => {
      onClose();
      showKey(made);
      void refresh();
    },
  });
  return (
    <Dialog title={`A new secret for ${entry.name}?`} onClose={onClose}>
      <form className="stack" onSubmit={(event) => { event.preventDefault(); rotate.mutate(); }}>
        <p>The key keeps its id, limits and counters. Both secrets work until the old one ends, so that its holder can change over without an interruption.</p>
        <Field label="The old secret ends" hint={overlap === '' ? 'Requests with it are refused from now on. Choose this if it has leaked.' : undefined}>
          {(props) => <select {...props} data-autofocus value={overlap} onChange={(event) => setOverlap(event.target.value)}>{OVERLAPS.map(([value, name]) => <option key={value} value={value}>{name}</option>)}</select>}
        </Field>
        {entry.previous_secret_until && <p className="warn-ink">An older secret is still accepted until {instant(entry.previous_secret_until)}. It ends now.</p>}
        {rotate.error && <Fault error={rotate.error} />}
        <div className="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" busy={rotate.isPending}>Rotate</Button>
        </div>
      </form>
    </Dialog>
  );
}

const ENDS = [
  ['disable', 'Disable it', 'Refused with 401 on every node within a second. It can be enabled again.'],
  ['delete', 'Delete it', 'Refused in the same way, and removed with its limits and budget. This cannot be undone.'],
] as const;

/** Ends a key: for now, or finally. One that is disabled already can only be deleted. */
function Revoke({ entry, onClose }: { entry: VirtualKey; onClose: () => void }) {
  const refresh = useRefresh();
  const mayEnable = useMayChange(entry);
  const isDisabled = entry.status === 'disabled';
  const [how, setHow] = useState<'disable' | 'delete'>(isDisabled ? 'delete' : 'disable');
  const revoke = useMutation({
    mutationFn: async (): Promise<VirtualKey | null> => {
      if (how === 'disable') return call<VirtualKey>('POST', path(entry, 'disable'), { ifVersion: entry.version });
      await call('DELETE', path(entry), { ifVersion: entry.version });
      return null;
    },
    onSuccess: (disabled) => {
      const undo = disabled && mayEnable ? () => call('POST', path(entry, 'enable'), { ifVersion: disabled.version }).then(refresh) : undefined;
      toast(`${entry.name} is ${disabled ? 'disabled' : 'deleted'}.`, 'good', undo);
      onClose();
      if (!disabled) navigate('/keys');
      void refresh();
    },
  });
  return (
    <Confirm title={`${isDisabled ? 'Delete' : 'Revoke'} ${entry.name}?`} verb={how === 'disable' ? 'Disable' : 'Delete'} busy={revoke.isPending} error={revoke.error} onConfirm={() => revoke.mutate()} onClose={onClose}>
      {isDisabled ? <p>{ENDS[1][2]}</p> : (
        <fieldset className="bare choices">
          <legend className="sr-only">How it ends</legend>
          {ENDS.map(([value, name, about]) => (
            <label key={value} className="choice" htmlFor={`revoke-${value}`}>
              <input id={`revoke-${value}`} type="radio" name="how" value={value} checked={how === value} onChange={() => setHow(value)} />
              <span>{name}</span>
              <small>{about}</small>
            </label>
          ))}
        </fieldset>
      )}
      {how === 'disable' && !mayEnable && <p className="warn-ink">An admin of the installation set the limits of this key: only such an admin can enable it again.</p>}
      <p className="muted">A stream that is running continues and is settled; the next request is refused.</p>
    </Confirm>
  );
}

/** Accepts a disabled key again. */
export function EnableButton({ entry, kind = 'quiet' }: { entry: VirtualKey; kind?: 'quiet' | 'plain' }) {
  const refresh = useRefresh();
  const mayEnable = useMayChange(entry);
  const enable = useMutation({
    mutationFn: () => call<VirtualKey>('POST', path(entry, 'enable'), { ifVersion: entry.version }),
    onSuccess: (enabled) => {
      toast(`${entry.name} is accepted again.`, 'good', () => call('POST', path(entry, 'disable'), { ifVersion: enabled.version }).then(refresh));
      void refresh();
    },
    onError: (error) => toast(sentence(error), 'bad'),
  });
  if (!mayEnable) return null;
  return <Button kind={kind} icon="check" aria-label={`Enable ${entry.name}`} busy={enable.isPending} onClick={() => enable.mutate()}>Enable</Button>;
}
