// Putting somebody on a list, with the reason and the end that a list had better have.
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { ApiError, call, get, segment } from '../api/client';
import type { ListEntry } from '../api/types';
import { type Client, IDENTITY_NAMES } from '../lib/subject';
import { Button, Dialog, Fault, Field } from '../ui/parts';
import { toast } from '../ui/toast';

const TYPES = [
  ['ip', 'IP address or network'],
  ['user_id', 'User'],
  ['tenant_id', 'Tenant'],
  ['api_key', 'API key'],
] as const;

const ENDS = [
  ['', 'never'],
  ['1', 'in an hour'],
  ['24', 'in a day'],
  ['168', 'in a week'],
  ['720', 'in 30 days'],
] as const;
const HOUR_MS = 3_600_000;

type Kind = 'whitelist' | 'blacklist';

/** What is there to put back: an entry, or none. */
async function before(kind: Kind, type: string, id: string): Promise<ListEntry | null> {
  try {
    return await get<ListEntry>(`${kind}/${segment(`${type}:${id}`)}`);
  } catch (error) {
    if (error instanceof ApiError && error.status < 500) return null;
    throw error;
  }
}

/** An entry as it is put on a list. */
export function bodyOf({ identifier_type, identifier, reason, expires_at }: ListEntry) {
  return { identifier_type, identifier, ...(reason ? { reason } : {}), ...(expires_at ? { expires_at } : {}) };
}

export function Reason({ kind, title, verb, choices = [], onClose }: { kind: Kind; title: string; verb: string; choices?: Client[]; onClose: () => void }) {
  const queries = useQueryClient();
  const isBlock = kind === 'blacklist';
  const [form, setForm] = useState({ identifier_type: choices[0]?.type ?? 'ip', identifier: choices[0]?.id ?? '', reason: '', hours: isBlock ? '1' : '' });
  const put = useMutation({
    mutationFn: async () => {
      const [type, identifier] = [form.identifier_type, form.identifier.trim()];
      const old = await before(kind, type, identifier);
      const entry = await call<ListEntry>('POST', kind, {
        body: { identifier_type: type, identifier, ...(form.reason.trim() ? { reason: form.reason.trim() } : {}), ...(form.hours ? { expires_at: new Date(Date.now() + Number(form.hours) * HOUR_MS).toISOString() } : {}) },
      });
      return { old, entry };
    },
    onSuccess: ({ old, entry }) => {
      const undo = async () => {
        if (old && !old.is_expired) await call('POST', kind, { body: bodyOf(old) });
        else await call('DELETE', `${kind}/${segment(entry.id)}`, { ifVersion: entry.version });
        await queries.invalidateQueries();
      };
      toast(`${form.identifier} is on the ${isBlock ? 'deny' : 'allow'} list.`, 'good', undo);
      void queries.invalidateQueries();
      onClose();
    },
  });
  const set = (name: keyof typeof form) => (event: { target: { value: string } }) => setForm({ ...form, [name]: event.target.value });
  const choose = (event: { target: { value: string } }) => {
    const chosen = choices[Number(event.target.value)];
    if (chosen) setForm({ ...form, identifier_type: chosen.type, identifier: chosen.id });
  };
  const isIncomplete = form.identifier.trim() === '' || (isBlock && form.reason.trim() === '');
  return (
    <Dialog title={title} onClose={onClose}>
      <form className="stack" onSubmit={(event) => { event.preventDefault(); put.mutate(); }}>
        <p className="about">{isBlock ? 'Every request is refused, before any rule.' : 'Every request passes, and nothing is counted.'}</p>
        {choices.length === 0 && (
          <div className="fields">
            <Field label="Kind">{(props) => <select {...props} value={form.identifier_type} onChange={(event) => setForm({ ...form, identifier_type: event.target.value as Client['type'] })}>{TYPES.map(([value, name]) => <option key={value} value={value}>{name}</option>)}</select>}</Field>
            <Field label="Name or address">{(props) => <input {...props} value={form.identifier} placeholder={form.identifier_type === 'ip' ? '203.0.113.0/24' : ''} spellCheck={false} onChange={set('identifier')} />}</Field>
          </div>
        )}
        {choices.length > 1 && (
          <Field label="Whom">{(props) => <select {...props} value={String(choices.findIndex((one) => one.type === form.identifier_type))} onChange={choose}>{choices.map(({ type, id }, index) => <option key={type} value={index}>{`the ${IDENTITY_NAMES[type]} ${id}`}</option>)}</select>}</Field>
        )}
        <Field label="Reason" hint={isBlock ? 'Needed: it is shown in the list and in the audit log.' : undefined}>{(props) => <input {...props} data-autofocus={choices.length > 0 || undefined} value={form.reason} placeholder="abuse report 4711" onChange={set('reason')} />}</Field>
        <Field label="Ends">{(props) => <select {...props} value={form.hours} onChange={set('hours')}>{ENDS.map(([value, name]) => <option key={value} value={value}>{name}</option>)}</select>}</Field>
        {put.error && <Fault error={put.error} />}
        <div className="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind={isBlock ? 'danger' : 'primary'} busy={put.isPending} disabled={isIncomplete}>{verb}</Button>
        </div>
      </form>
    </Dialog>
  );
}
