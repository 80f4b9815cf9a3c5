// A rule as a form. It reads the rule and writes the rule; it keeps nothing of its own.
import { useState } from 'react';
import { useMay } from '../api/session';
import type { Rule, RuleLimit } from '../api/types';
import {
  ACTIONS, algorithmOf, ALGORITHMS, APPLIES, type AppliesField, BUCKETS, CALENDARS, IDENTIFIERS, limitsOf, limitWith, quotaOf, splitTexts,
  textsOf, UNITS, windowText, withApplies, withCalendar, withField, withLimits, withWindow,
} from '../lib/rule';
import type { Fault } from '../lib/ruleCheck';
import { Button, Field } from '../ui/parts';
import { PlanLimits } from './planLimits';

const WHO: Record<string, string> = {
  api_key: 'API key', user_id: 'User', tenant_id: 'Tenant', ip: 'IP address', client: 'Client (key, else user, else IP)', global: 'Everyone together', composite: 'Several attributes…',
};
export const UNIT: Record<string, string> = { requests: 'Requests', tokens: 'Tokens', cost: 'Cost units', input_tokens: 'Input tokens', output_tokens: 'Output tokens', cached_tokens: 'Cached input tokens', money: 'Money', concurrency: 'Requests at the same time' };
const ACTION: Record<string, string> = { reject: 'Refuse', throttle: 'Delay', queue: 'Queue (gateway)', log_only: 'Only report' };
const ALGORITHM: Record<string, string> = {
  token_bucket: 'Token bucket', fixed_window: 'Fixed window', sliding_window_log: 'Sliding log (exact)', sliding_window_counter: 'Sliding counter', leaky_bucket: 'Leaky bucket', gcra: 'GCRA (even spacing)', concurrency: 'Concurrency',
};
const APPLY: Record<AppliesField, [label: string, example: string]> = {
  endpoints: ['Endpoints', '/api/*, /projects/{project}/*'], methods: ['Methods', 'GET, POST'], models: ['Models', 'gpt4'], model_tiers: ['Model tiers', 'large'],
  user_tiers: ['Plans', 'free, pro'], client_types: ['Client types', 'EXTERNAL'], tenants: ['Tenants', 'acme'], users: ['Users', 'ann'], api_keys: ['API keys', 'key-1'], domains: ['Domains', 'edge'],
};

interface Props {
  rule: Rule;
  isNew: boolean;
  faults: Fault[];
  onChange: (rule: Rule) => void;
}

type Input = { target: { value: string } };

export function RuleForm({ rule, isNew, faults, onChange }: Props) {
  const { isTenant } = useMay();
  const fault = (field: string) => faults.find((one) => one.field === field)?.message;
  const set = (field: 'name' | 'description' | 'scope' | 'slot_ttl' | 'currency' | 'starts_at' | 'ends_at') => (event: Input) => onChange(withField(rule, field, event.target.value));
  const applies = APPLIES.filter((field) => !(isTenant && field === 'tenants'));
  return (
    <div className="rule-form">
      <fieldset>
        <legend>Name</legend>
        <div className="fields">
          <Field label="Id" fault={fault('rule_id')} hint={isNew ? undefined : 'The id stays: counters are kept under it.'}>
            {(props) => <input {...props} value={rule.rule_id} readOnly={!isNew} spellCheck={false} maxLength={128} onChange={(event) => onChange({ ...rule, rule_id: event.target.value })} />}
          </Field>
          <Field label="Name for people" fault={fault('name')}>{(props) => <input {...props} value={rule.name ?? ''} onChange={set('name')} />}</Field>
          <Field label="What it is for" fault={fault('description')} wide>{(props) => <input {...props} value={rule.description ?? ''} onChange={set('description')} />}</Field>
        </div>
        <label className="check">
          <input type="checkbox" checked={rule.is_active !== false} onChange={(event) => onChange(withField(rule, 'is_active', event.target.checked ? undefined : false))} />
          In force
        </label>
      </fieldset>
      <fieldset>
        <legend>Who is counted, and what</legend>
        <div className="fields">
          <Field label="A counter for each" fault={fault('identifier_type')}>
            {(props) => (
              <select
                {...props}
                value={rule.key_by && !rule.identifier_type ? 'composite' : (rule.identifier_type ?? 'global')}
                onChange={(event) => {
                  const type = event.target.value as Rule['identifier_type'];
                  const next = withField(rule, 'identifier_type', type);
                  onChange(type === 'composite' ? next : withField(next, 'key_by', undefined));
                }}
              >
                {IDENTIFIERS.map((one) => <option key={one} value={one}>{WHO[one]}</option>)}
              </select>
            )}
          </Field>
          {(rule.identifier_type === 'composite' || rule.key_by) && (
            <TextsField label="Attributes of the key" example="user_id, model_id" fault={fault('key_by')} values={rule.key_by ?? []} onChange={(values) => onChange(withField(rule, 'key_by', values))} />
          )}
          <Field label="What counts" fault={fault('unit')}>
            {(props) => (
              <select {...props} value={rule.unit ?? 'requests'} onChange={(event) => onChange(withField(rule, 'unit', event.target.value === 'requests' ? undefined : (event.target.value as Rule['unit'])))}>
                {UNITS.map((one) => <option key={one} value={one}>{UNIT[one]}</option>)}
              </select>
            )}
          </Field>
          {rule.unit === 'money' && (
            <Field label="Currency" fault={fault('currency')}>{(props) => <input {...props} value={rule.currency ?? ''} placeholder="USD" onChange={set('currency')} />}</Field>
          )}
          {rule.unit === 'concurrency' && (
            <Field label="A slot is held for" hint="Unless renewed; such as 30s" fault={fault('slot_ttl')}>{(props) => <input {...props} value={String(rule.slot_ttl ?? '')} placeholder="60s" onChange={set('slot_ttl')} />}</Field>
          )}
        </div>
      </fieldset>
      <Limits rule={rule} fault={fault} onChange={onChange} />
      <fieldset>
        <legend>Where it applies</legend>
        <p className="note">What is empty constrains nothing. Several values are separated by commas.</p>
        <div className="fields">
          {applies.map((field) => (
            <TextsField key={field} label={APPLY[field][0]} example={APPLY[field][1]} fault={fault(`applies_to.${field}`)} values={textsOf(rule.applies_to?.[field])} onChange={(values) => onChange(withApplies(rule, field, values))} />
          ))}
        </div>
      </fieldset>
      <fieldset>
        <legend>When a limit is used up</legend>
        <div className="fields">
          <Field label="Action" fault={fault('action')}>
            {(props) => (
              <select
                {...props}
                value={rule.action ?? 'reject'}
                onChange={(event) => {
                  const next = withField(rule, 'action', event.target.value === 'reject' ? undefined : (event.target.value as Rule['action']));
                  onChange(event.target.value === 'throttle' ? next : withField(next, 'max_delay_ms', undefined));
                }}
              >
                {ACTIONS.map((one) => <option key={one} value={one}>{ACTION[one]}</option>)}
              </select>
            )}
          </Field>
          {rule.action === 'throttle' && <NumberField label="Longest wait, ms" fault={fault('max_delay_ms')} value={rule.max_delay_ms} onChange={(value) => onChange(withField(rule, 'max_delay_ms', value))} />}
          <NumberField label="Warn from, share of the limit" example="0.8" fault={fault('soft_limit')} value={rule.soft_limit} onChange={(value) => onChange(withField(rule, 'soft_limit', value))} />
        </div>
      </fieldset>
      <details>
        <summary>Scope, priority, period{isTenant ? '' : ', consistency'}</summary>
        <div className="fields">
          {!isTenant && <Field label="Scope" hint="Rules of one scope are alternatives" fault={fault('scope')}>{(props) => <input {...props} value={rule.scope ?? ''} placeholder={rule.rule_id} onChange={set('scope')} />}</Field>}
          <NumberField label="Priority" example="0" fault={fault('priority')} value={rule.priority} onChange={(value) => onChange(withField(rule, 'priority', value))} />
          {!isTenant && <TextsField label="Replaces scopes" example="DEFAULT" fault={fault('overrides')} values={textsOf(rule.overrides)} onChange={(values) => onChange(withField(rule, 'overrides', values))} />}
          <Field label="From" fault={fault('starts_at')}>{(props) => <input {...props} value={rule.starts_at ?? ''} placeholder="2027-01-31T12:00:00Z" onChange={set('starts_at')} />}</Field>
          <Field label="Until" fault={fault('ends_at')}>{(props) => <input {...props} value={rule.ends_at ?? ''} placeholder="2027-02-28T12:00:00Z" onChange={set('ends_at')} />}</Field>
          {!isTenant && <Sharing rule={rule} fault={fault} onChange={onChange} />}
        </div>
      </details>
    </div>
  );
}

function Sharing({ rule, fault, onChange }: { rule: Rule; fault: (field: string) => string | undefined; onChange: (rule: Rule) => void }) {
  return (
    <>
      <Field label="Exactness over several nodes" fault={fault('consistency')}>
        {(props) => (
          <select
            {...props}
            value={rule.consistency ?? 'strict'}
            onChange={(event) => {
              const next = withField(rule, 'consistency', event.target.value === 'strict' ? undefined : (event.target.value as Rule['consistency']));
              onChange(event.target.value === 'leased' ? next : withField(next, 'max_overshoot', undefined));
            }}
          >
            <option value="strict">Strict</option>
            <option value="leased">Leased: faster, nearly exact</option>
            <option value="local">Each node alone</option>
          </select>
        )}
      </Field>
      {rule.consistency === 'leased' && <NumberField label="Largest overshoot, share" example="0.01" fault={fault('max_overshoot')} value={rule.max_overshoot} onChange={(value) => onChange(withField(rule, 'max_overshoot', value))} />}
      <Field label="While the store is unavailable" fault={fault('on_store_failure')}>
        {(props) => (
          <select {...props} value={rule.on_store_failure ?? ''} onChange={(event) => onChange(withField(rule, 'on_store_failure', event.target.value as Rule['on_store_failure']))}>
            <option value="">As configured</option>
            <option value="local">Decide on a share</option>
            <option value="open">Let pass</option>
            <option value="closed">Refuse</option>
          </select>
        )}
      </Field>
    </>
  );
}

function Limits({ rule, fault, onChange }: { rule: Rule; fault: (field: string) => string | undefined; onChange: (rule: Rule) => void }) {
  const limits = limitsOf(rule);
  const several = Array.isArray(rule.limits);
  const put = (index: number, limit: RuleLimit) => onChange(withLimits(rule, limits.map((one, place) => (place === index ? limit : one))));
  return (
    <fieldset>
      <legend>{limits.length > 1 ? 'Limits, all at once' : 'Limit'}</legend>
      {limits.map((limit, index) => (
        <LimitFields
          key={index}
          part={`limit-${String(index)}`}
          rule={rule}
          limit={limit}
          fault={(name) => fault(several ? `limits[${String(index)}].${name}` : name)}
          onChange={(next) => put(index, next)}
          onRemove={limits.length > 1 ? () => onChange(withLimits(rule, limits.filter((_, place) => place !== index))) : undefined}
        />
      ))}
      <Button kind="quiet" icon="plus" onClick={() => onChange(withLimits(rule, [...limits, { limit: 1000, window: '1h' }]))}>
        Another limit
      </Button>
    </fieldset>
  );
}

function LimitFields({ part, rule, limit, fault, onChange, onRemove }: { part: string; rule: Rule; limit: RuleLimit; fault: (name: string) => string | undefined; onChange: (limit: RuleLimit) => void; onRemove: (() => void) | undefined }) {
  const algorithm = algorithmOf(rule, limit);
  const isConcurrency = algorithm === 'concurrency';
  return (
    <div className="limit-fields">
      <div className="fields">
        <Field label="How many" fault={fault('limit')} hint="0 suspends; or write unlimited">
          {(props) => <input {...props} data-part={part} value={String(limit.limit ?? '')} placeholder="100" onChange={(event) => onChange(limitWith(limit, 'limit', quotaOf(event.target.value)))} />}
        </Field>
        {!isConcurrency && (
          <Field label="In" fault={fault('calendar')}>
            {(props) => (
              <select {...props} value={limit.calendar ?? ''} onChange={(event) => onChange(event.target.value === '' ? withWindow(limit, '1m') : withCalendar(limit, event.target.value as RuleLimit['calendar']))}>
                <option value="">a window</option>
                {CALENDARS.map((one) => <option key={one} value={one}>a calendar {one}</option>)}
              </select>
            )}
          </Field>
        )}
        {!isConcurrency && !limit.calendar && (
          <Field label="Window" fault={fault('window')} hint="Such as 500ms, 10s, 1m, 1h, 1d">{(props) => <input {...props} value={windowText(limit)} placeholder="1m" onChange={(event) => onChange(withWindow(limit, event.target.value))} />}</Field>
        )}
        {limit.calendar && <Field label="Time zone" fault={fault('timezone')}>{(props) => <input {...props} value={limit.timezone ?? ''} placeholder="UTC" onChange={(event) => onChange(limitWith(limit, 'timezone', event.target.value))} />}</Field>}
        {limit.calendar === 'month' && <NumberField label="The month begins on day" example="1" fault={fault('anchor_day')} value={limit.anchor_day} onChange={(value) => onChange(limitWith(limit, 'anchor_day', value))} />}
        {!limit.calendar && !isConcurrency && (
          <Field label="Algorithm" fault={fault('algorithm')}>
            {(props) => (
              <select
                {...props}
                value={algorithm}
                onChange={(event) => {
                  const next = limitWith(limit, 'algorithm', event.target.value as RuleLimit['algorithm']);
                  onChange(BUCKETS.includes(event.target.value) ? next : limitWith(next, 'burst', undefined));
                }}
              >
                {ALGORITHMS.filter((one) => one !== 'concurrency').map((one) => <option key={one} value={one}>{ALGORITHM[one]}</option>)}
              </select>
            )}
          </Field>
        )}
        {BUCKETS.includes(algorithm) && <NumberField label="At once (burst)" example={algorithm === 'gcra' ? '1' : String(limit.limit ?? '')} fault={fault('burst')} value={limit.burst === undefined ? undefined : Number(limit.burst)} onChange={(value) => onChange(limitWith(limit, 'burst', value))} />}
        <PlanLimits limit={limit} fault={fault('tier_limits')} onChange={onChange} />
      </div>
      {onRemove && <Button kind="quiet" icon="trash" onClick={onRemove}>Remove this limit</Button>}
    </div>
  );
}

/** Something that is typed and means something else: what is typed stays as long as it means the same. */
function useTyped<T>(value: T, print: (value: T) => string, parse: (text: string) => T): [string, (text: string) => T] {
  const [typed, setTyped] = useState(() => print(value));
  const text = print(parse(typed)) === print(value) ? typed : print(value);
  return [text, (next) => { setTyped(next); return parse(next); }];
}

export function TextsField({ label, example, hint, fault, values, onChange }: { label: string; example: string; hint?: string; fault: string | undefined; values: string[]; onChange: (values: string[]) => void }) {
  const [text, type] = useTyped(values, (all) => all.join(', '), splitTexts);
  return <Field label={label} fault={fault} hint={hint}>{(props) => <input {...props} value={text} placeholder={example} spellCheck={false} onChange={(event) => onChange(type(event.target.value))} />}</Field>;
}

export function NumberField({ label, example, fault, value, onChange }: { label: string; example?: string; fault: string | undefined; value: number | undefined; onChange: (value: number | undefined) => void }) {
  const parse = (text: string) => {
    const number = Number(text.replace(',', '.'));
    return text.trim() === '' || Number.isNaN(number) ? undefined : number;
  };
  const [text, type] = useTyped(value, (one) => (one === undefined ? '' : String(one)), parse);
  return <Field label={label} fault={fault}>{(props) => <input {...props} inputMode="decimal" value={text} placeholder={example} onChange={(event) => onChange(type(event.target.value))} />}</Field>;
}
