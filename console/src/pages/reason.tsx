// Putting somebody on a list, with the reason and the end that a list had better have.
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { call } from '../api/client';
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

export function Reason({
  kind,
  title,
  verb,
  fixed,
  onClose,
}: {
  kind: 'whitelist' | 'blacklist';
  title: string;
  verb: string;
  fixed?: { identifier_type: string; identifier: string };
  onClose: () => void;
}) {
  const queries = useQueryClient();
  const [form, setForm] = useState({ identifier_type: fixed?.identifier_type ?? 'ip', identifier: fixed?.identifier ?? '', reason: '', hours: '' });
  const put = useMutation({
    mutationFn: () =>
      call('POST', kind, {
        body: {
          identifier_type: form.identifier_type,
          identifier: form.identifier.trim(),
          ...(form.reason ? { reason: form.reason } : {}),
          ...(form.hours ? { expires_at: new Date(Date.now() + Number(form.hours) * HOUR_MS).toISOString() } : {}),
        },
      }),
    onSuccess: () => {
      toast(`${form.identifier} is on the ${kind === 'blacklist' ? 'deny' : 'allow'} list.`);
      void queries.invalidateQueries();
      onClose();
    },
  });
  const set = (name: keyof typeof form) => (event: { target: { value: string } }) => setForm({ ...form, [name]: event.target.value });
  return (
    <Dialog title={title} onClose={onClose}>
      <form className="stack" onSubmit={(event) => { event.preventDefault(); put.mutate(); }}>
        <p className="about">{kind === 'blacklist' ? 'Every request is refused, before any rule.' : 'Every request passes, and nothing is counted.'}</p>
        {!fixed && (
          <div className="fields">
            <Field label="Kind">{(props) => <select {...props} value={form.identifier_type} onChange={set('identifier_type')}>{TYPES.map(([value, name]) => <option key={value} value={value}>{name}</option>)}</select>}</Field>
            <Field label="Name or address">{(props) => <input {...props} value={form.identifier} placeholder={form.identifier_type === 'ip' ? '203.0.113.0/24' : ''} spellCheck={false} onChange={set('identifier')} />}</Field>
          </div>
        )}
        <Field label="Reason">{(props) => <input {...props} value={form.reason} placeholder="abuse report 4711" onChange={set('reason')} />}</Field>
        <Field label="Ends">{(props) => <select {...props} value={form.hours} onChange={set('hours')}>{ENDS.map(([value, name]) => <option key={value} value={value}>{name}</option>)}</select>}</Field>
        {put.error && <Fault error={put.error} />}
        <div className="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind={kind === 'blacklist' ? 'danger' : 'primary'} busy={put.isPending} disabled={form.identifier.trim() === ''}>{verb}</Button>
        </div>
      </form>
    </Dialog>
  );
}
