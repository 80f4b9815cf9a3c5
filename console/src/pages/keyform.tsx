// A virtual key as a form.
import { useId, useState } from 'react';
import { useIdentity } from '../api/session';
import type { KeyBudget, KeyLimit } from '../api/types';
import { type KeyDraft, keyWith, MAX_LIMITS, parseTags } from '../lib/key';
import { CALENDARS, limitWith, quotaOf, UNITS, windowText, withCalendar, withWindow } from '../lib/rule';
import type { Fault } from '../lib/ruleCheck';
import { fromInput, toInput, zoneName } from '../lib/zone';
import { Button, Field } from '../ui/parts';
import { NumberField, TextsField, UNIT } from './ruleform';

/** Currencies that are offered; others can be typed. */
const CURRENCIES = ['USD', 'EUR', 'GBP', 'CHF', 'JPY', 'CAD', 'AUD', 'INR', 'CNY'];

interface Props {
  draft: KeyDraft;
  /** Tags as typed. */
  tags: string;
  isNew: boolean;
  faults: Fault[];
  onChange: (draft: KeyDraft, tags: string) => void;
}

export function KeyForm({ draft, tags, isNew, faults, onChange }: Props) {
  const { tenant_id: own, role } = useIdentity();
  const isTenant = role === 'tenant_admin';
  const fault = (field: string) => faults.find((one) => one.field === field)?.message;
  const put = (next: KeyDraft) => onChange(next, tags);
  const limits = draft.limits ?? [];
  const putLimits = (next: KeyLimit[]) => put(keyWith(draft, 'limits', next));
  return (
    <div className="rule-form">
      <fieldset>
        <legend>Whose it is</legend>
        <div className="fields">
          <Field label="Name" fault={fault('name')} hint="What it is for">
            {(props) => <input {...props} data-part="name" value={draft.name} placeholder="search team" onChange={(event) => put(keyWith(draft, 'name', event.target.value))} />}
          </Field>
          <Field label="Owner" fault={fault('owner')} hint="The user of its requests">
            {(props) => <input {...props} value={draft.owner ?? ''} placeholder="ann" spellCheck={false} onChange={(event) => put(keyWith(draft, 'owner', event.target.value))} />}
          </Field>
          <Field label="Tenant" fault={fault('tenant_id')} hint={isNew && !isTenant ? 'It cannot be changed later' : 'It stays'}>
            {(props) => <input {...props} readOnly={!isNew || isTenant} value={isTenant && isNew ? own ?? '' : draft.tenant_id ?? ''} placeholder={isNew ? 'acme' : 'none'} spellCheck={false} onChange={(event) => put(keyWith(draft, 'tenant_id', event.target.value))} />}
          </Field>
          <Field label="Tags" fault={fault('tags')} hint="Attributes that rules can use">
            {(props) => <input {...props} value={tags} placeholder="team=search, env=prod" spellCheck={false} onChange={(event) => onChange(keyWith(draft, 'tags', parseTags(event.target.value).tags), event.target.value)} />}
          </Field>
        </div>
      </fieldset>
      <fieldset>
        <legend>What it may use</legend>
        <div className="fields roomy">
          <TextsField label="Models" hint="Empty: all. * stands for any text" example="gpt-4o*, claude-*" fault={fault('models')} values={draft.models ?? []} onChange={(values) => put(keyWith(draft, 'models', values))} />
          <Field label={`Ends (${zoneName()})`} fault={fault('expires_at')} hint="Empty: when it is revoked">
            {(props) => <input {...props} type="datetime-local" value={toInput(draft.expires_at ?? '').slice(0, 16)} onChange={(event) => put(keyWith(draft, 'expires_at', fromInput(event.target.value) ?? undefined))} />}
          </Field>
        </div>
      </fieldset>
      <fieldset>
        <legend>Limits of its own</legend>
        <p className="note">They come on top of all rules.{fault('limits') && <span className="bad-ink"> {fault('limits')}</span>}</p>
        {limits.map((limit, index) => (
          <LimitFields
            key={index}
            limit={limit}
            name={`Limit ${String(index + 1)}`}
            fault={(name) => fault(`limits[${String(index)}].${name}`) ?? fault(`limits.${name}`)}
            onChange={(next) => putLimits(limits.map((one, place) => (place === index ? next : one)))}
            onRemove={() => putLimits(limits.filter((_, place) => place !== index))}
          />
        ))}
        {limits.length < MAX_LIMITS && <Button kind="quiet" icon="plus" onClick={() => putLimits([...limits, { limit: 60, window: '1m' }])}>{limits.length === 0 ? 'Add a limit' : 'Another limit'}</Button>}
      </fieldset>
      <BudgetFields budget={draft.budget} fault={(name) => fault(name === '' ? 'budget' : `budget.${name}`)} onChange={(budget) => put(keyWith(draft, 'budget', budget))} />
    </div>
  );
}

function LimitFields({ limit, name, fault, onChange, onRemove }: { limit: KeyLimit; name: string; fault: (name: string) => string | undefined; onChange: (limit: KeyLimit) => void; onRemove: () => void }) {
  const unit = limit.unit ?? 'requests';
  const isConcurrency = unit === 'concurrency';
  const setUnit = (next: string) => {
    // What was chosen for another unit may not fit this one.
    const rest: KeyLimit = { ...limit };
    for (const field of ['unit', 'currency', 'algorithm', 'burst'] as const) Reflect.deleteProperty(rest, field);
    const own: KeyLimit = { ...rest, ...(next === 'requests' ? {} : { unit: next as NonNullable<KeyLimit['unit']> }), ...(next === 'money' ? { currency: limit.currency ?? 'USD' } : {}) };
    onChange(next === 'concurrency' ? limitWith(withWindow(own, ''), 'window', undefined) : own.calendar || windowText(own) !== '' ? own : withWindow(own, '1m'));
  };
  return (
    <div className="limit-fields" role="group" aria-label={name}>
      <div className="fields">
        <Field label="What counts" fault={fault('unit')}>
          {(props) => <select {...props} value={unit} onChange={(event) => setUnit(event.target.value)}>{UNITS.map((one) => <option key={one} value={one}>{UNIT[one]}</option>)}</select>}
        </Field>
        <Field label="How many" fault={fault('limit')}>
          {(props) => <input {...props} data-part={unit} inputMode="decimal" value={String(limit.limit ?? '')} placeholder={unit === 'money' ? '5.00' : '100'} onChange={(event) => onChange(limitWith(limit, 'limit', quotaOf(event.target.value)))} />}
        </Field>
        {unit === 'money' && <CurrencyField value={limit.currency ?? ''} fault={fault('currency')} onChange={(currency) => onChange({ ...limit, currency })} />}
        {!isConcurrency && <PeriodFields period={limit} fault={fault} onChange={onChange} />}
      </div>
      <Button kind="quiet" icon="trash" aria-label={`Remove ${name.toLowerCase()}`} onClick={onRemove}>Remove</Button>
    </div>
  );
}

/** A calendar period in a time zone, or a window. */
function PeriodFields<T extends Pick<KeyLimit, 'calendar' | 'timezone' | 'anchor_day' | 'window'>>({ period, fault, onChange }: { period: T; fault: (name: string) => string | undefined; onChange: (period: T) => void }) {
  const setKind = (kind: string) => onChange((kind === '' ? withWindow(period, '1m') : withCalendar(period, kind as KeyLimit['calendar'])) as T);
  return (
    <>
      <Field label="In" fault={fault('calendar')}>
        {(props) => (
          <select {...props} value={period.calendar ?? ''} onChange={(event) => setKind(event.target.value)}>
            <option value="">a window</option>
            {CALENDARS.map((one) => <option key={one} value={one}>a calendar {one}</option>)}
          </select>
        )}
      </Field>
      {period.calendar ? (
        <Field label="Time zone" fault={fault('timezone')}>{(props) => <input {...props} value={period.timezone ?? ''} placeholder="UTC" spellCheck={false} onChange={(event) => onChange(limitWith(period, 'timezone', event.target.value) as T)} />}</Field>
      ) : (
        <Field label="Window" fault={fault('window')} hint="Such as 10s, 1m, 1h, 30d">{(props) => <input {...props} value={windowText(period)} placeholder="1m" onChange={(event) => onChange(withWindow(period, event.target.value) as T)} />}</Field>
      )}
      {period.calendar === 'month' && <NumberField label="The month begins on day" example="1" fault={fault('anchor_day')} value={period.anchor_day} onChange={(value) => onChange(limitWith(period, 'anchor_day', value) as T)} />}
    </>
  );
}

function CurrencyField({ value, fault, onChange }: { value: string; fault: string | undefined; onChange: (currency: string) => void }) {
  const id = useId();
  return (
    <Field label="Currency" fault={fault}>
      {(props) => (
        <>
          <input {...props} list={id} value={value} placeholder="USD" maxLength={3} spellCheck={false} onChange={(event) => onChange(event.target.value.toUpperCase())} />
          <datalist id={id}>{CURRENCIES.map((one) => <option key={one} value={one} />)}</datalist>
        </>
      )}
    </Field>
  );
}

function BudgetFields({ budget, fault, onChange }: { budget: KeyBudget | undefined; fault: (name: string) => string | undefined; onChange: (budget: KeyBudget | undefined) => void }) {
  // What was typed is there again when the budget is switched on again.
  const [last, setLast] = useState<KeyBudget>(budget ?? { amount: '5.00', currency: 'USD', calendar: 'month' });
  const put = (next: KeyBudget) => {
    setLast(next);
    onChange(next);
  };
  return (
    <fieldset>
      <legend>Budget</legend>
      <label className="check">
        <input type="checkbox" checked={budget !== undefined} onChange={(event) => onChange(event.target.checked ? last : undefined)} />
        It may spend a limited amount of money
      </label>
      {budget && (
        <>
          <p className="note">Spend is counted by the prices of your models; a model without a price is refused.{fault('') && <span className="bad-ink"> {fault('')}</span>}</p>
          <div className="fields">
            <Field label="Amount" fault={fault('amount')}>{(props) => <input {...props} data-part="budget" inputMode="decimal" value={String(budget.amount)} placeholder="5.00" onChange={(event) => put({ ...budget, amount: event.target.value.trim() })} />}</Field>
            <CurrencyField value={budget.currency} fault={fault('currency')} onChange={(currency) => put({ ...budget, currency })} />
            <PeriodFields period={budget} fault={fault} onChange={put} />
            <Field label="While the store does not answer" fault={fault('mode')}>
              {(props) => (
                <select {...props} value={budget.mode ?? 'hard'} onChange={(event) => put({ ...budget, mode: event.target.value as 'hard' | 'soft' })}>
                  <option value="hard">Hard: refuse calls</option>
                  <option value="soft">Soft: as the client type says</option>
                </select>
              )}
            </Field>
          </div>
        </>
      )}
    </fieldset>
  );
}
