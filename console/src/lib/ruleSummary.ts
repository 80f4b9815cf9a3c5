// What a rule means, in plain words.
import type { Rule, RuleLimit } from '../api/types';
import { count, list, percent, plural, span } from './format';
import { decimalMoney } from './money';
import { algorithmOf, limitsOf, textsOf, windowSeconds } from './rule';

const SUBJECTS: Record<string, string> = {
  api_key: 'Each API key',
  user_id: 'Each user',
  tenant_id: 'Each tenant',
  ip: 'Each IP address',
  client: 'Each client (its API key, else its user, else its IP address)',
  global: 'All callers together',
};

const PARTS: Record<string, string> = {
  user_id: 'user',
  tenant_id: 'tenant',
  api_key: 'API key',
  ip: 'IP address',
  model_id: 'model',
  model_tier: 'model tier',
  client_type: 'client type',
  tier: 'plan',
  endpoint: 'endpoint',
  method: 'method',
  domain: 'domain',
};

/** Everything there is to say, a sentence each; the first says the most. */
export function summary(rule: Rule): string[] {
  const limits = limitsOf(rule);
  return [
    ...(rule.is_active === false ? ['Switched off: it has no effect until it is switched on.'] : []),
    main(rule, limits),
    ...limits.flatMap((limit) => details(rule, limit, limits.length > 1)),
    ...limits.flatMap((limit) => tiers(rule, limit)),
    ...costs(rule),
    beyond(rule),
    ...soft(rule),
    ...company(rule),
    ...storage(rule),
    ...period(rule),
  ];
}

/** The first sentence, for lists. */
export function headline(rule: Rule): string {
  return main(rule, limitsOf(rule));
}

function main(rule: Rule, limits: RuleLimit[]): string {
  const who = subject(rule);
  const where = conditions(rule);
  const suffix = where === '' ? '' : ` ${where}`;
  const [only] = limits;
  if (limits.length === 1 && only?.limit === 0) return `${who} is suspended${suffix}: every request is refused.`;
  if (limits.length === 1 && only?.limit === 'unlimited') return `${who} is not limited${suffix}.`;
  const amounts = limits.map((limit) => amount(rule, limit));
  return `${who} may ${verb(rule)} ${list(amounts)}${suffix}.`;
}

function subject(rule: Rule): string {
  const parts = rule.key_by ?? [];
  if (parts.length > 0) {
    const names = parts.map((part) => PARTS[part] ?? part);
    return names.length === 1 ? `Each ${names[0] ?? ''}` : `Each combination of ${list(names)}`;
  }
  return SUBJECTS[rule.identifier_type ?? 'global'] ?? 'Each caller';
}

/** What is done with what a rule counts: requests are made, tokens used. */
export function verb(rule: Pick<Rule, 'unit'>): string {
  switch (rule.unit) {
    case 'tokens':
    case 'input_tokens':
    case 'output_tokens':
    case 'cached_tokens':
      return 'use';
    case 'cost':
    case 'money':
      return 'spend';
    case 'concurrency':
      return 'have';
    default:
      return 'make';
  }
}

/** How much a limit lets pass in which time: "60 requests per minute". */
export function amount(rule: Pick<Rule, 'unit' | 'currency'>, limit: RuleLimit): string {
  const quota = limit.limit;
  const number = quota === 'unlimited' ? 'any number of' : quota === undefined ? '?' : figure(quota);
  const single = quota === 1;
  switch (rule.unit) {
    case 'concurrency':
      return `${number} ${single ? 'request' : 'requests'} under way at the same time`;
    case 'tokens':
      return `${number} ${single ? 'token' : 'tokens'} ${window(limit)}`;
    case 'input_tokens':
    case 'output_tokens':
    case 'cached_tokens':
      return `${number} ${rule.unit.replace('_tokens', '')} ${single ? 'token' : 'tokens'} ${window(limit)}`;
    case 'money':
      return `${quota === 'unlimited' || quota === undefined ? `${number} ${rule.currency ?? ''}` : decimalMoney(quota, rule.currency)} ${window(limit)}`;
    case 'cost':
      return `${number} ${single ? 'cost unit' : 'cost units'} ${window(limit)}`;
    default:
      return `${number} ${single ? 'request' : 'requests'} ${window(limit)}`;
  }
}

/** A number, or an amount of money as it is written. */
function figure(quota: number | string): string {
  return typeof quota === 'number' ? count(quota) : quota;
}

function window(limit: RuleLimit): string {
  if (limit.calendar) {
    const zone = limit.timezone ?? 'UTC';
    const day = limit.anchor_day && limit.anchor_day !== 1 ? ` from day ${String(limit.anchor_day)} on` : '';
    return `per calendar ${limit.calendar}${day} (${zone})`;
  }
  const seconds = windowSeconds(limit);
  return seconds === undefined ? 'per ?' : `per ${span(seconds, 'named')}`;
}

function conditions(rule: Rule): string {
  const applies = rule.applies_to ?? {};
  const said: string[] = [];
  const methods = textsOf(applies.methods).map((method) => method.toUpperCase());
  const endpoints = textsOf(applies.endpoints);
  if (endpoints.length > 0) said.push(`on ${methods.length > 0 ? `${list(methods, 'or')} ` : ''}${list(endpoints, 'or')}`);
  else if (methods.length > 0) said.push(`with ${list(methods, 'or')}`);
  const add = (values: string[], one: string, many: string, word: string) => {
    if (values.length > 0) said.push(`${word} ${values.length === 1 ? one : many} ${list(values, 'or')}`);
  };
  add(textsOf(applies.models), 'model', 'models', 'to');
  add(textsOf(applies.model_tiers), 'model tier', 'model tiers', 'to');
  add(textsOf(applies.user_tiers), 'plan', 'plans', 'on');
  add(textsOf(applies.client_types), 'client type', 'client types', 'as');
  add(textsOf(applies.tenants), 'tenant', 'tenants', 'in');
  add(textsOf(applies.users), 'user', 'users', 'by');
  const keys = textsOf(applies.api_keys).length;
  if (keys > 0) said.push(`with ${plural(keys, 'listed API key')}`);
  add(textsOf(applies.domains), 'domain', 'domains', 'in');
  for (const [name, values] of Object.entries(applies.attributes ?? {})) {
    said.push(`where ${name} is ${list(textsOf(values), 'or')}`);
  }
  return said.join(', ');
}

function details(rule: Rule, limit: RuleLimit, several: boolean): string[] {
  const quota = typeof limit.limit === 'number' && rule.unit !== 'money' ? limit.limit : undefined;
  if (quota === undefined || quota === 0) return [];
  const seconds = windowSeconds(limit);
  const of = several ? ` (the limit of ${count(quota)})` : '';
  const at = (burst: number | string) => (burst === 1 ? 'never two at once' : `at most ${figure(burst)} at once`);
  switch (algorithmOf(rule, limit)) {
    case 'token_bucket': {
      if (seconds === undefined) return [];
      return [`It refills continuously, one every ${gap(seconds, quota)}; ${at(limit.burst ?? quota)}${of}.`];
    }
    case 'gcra': {
      if (seconds === undefined) return [];
      const burst = limit.burst ?? 1;
      return [`Evenly spaced, one every ${gap(seconds, quota)}; ${at(burst)}${of}.`];
    }
    case 'leaky_bucket': {
      if (seconds === undefined) return [];
      return [`Requests leave one every ${gap(seconds, quota)}; at most ${figure(limit.burst ?? quota)} wait their turn${of}.`];
    }
    case 'sliding_window_log':
      return seconds === undefined ? [] : [`Exactly so many in any ${span(seconds, 'named')} you look at${of}.`];
    case 'sliding_window_counter':
      return seconds === undefined ? [] : [`Measured over a sliding ${span(seconds, 'named')}, from two counters${of}.`];
    case 'concurrency':
      return [`A slot is freed when the request ends, or after ${slot(rule)} without a renewal${of}.`];
    case 'fixed_window':
      return limit.calendar || seconds === undefined ? [] : [`Counted anew at every full ${span(seconds, 'named')} of the clock${of}.`];
  }
}

function gap(seconds: number, quota: number): string {
  const millis = (seconds * 1000) / quota;
  if (millis >= 1000) return span(Number((millis / 1000).toPrecision(3)), 'named');
  return millis >= 1 ? `${String(Number(millis.toPrecision(3)))} ms` : `${String(Number((millis * 1000).toPrecision(3)))} µs`;
}

function slot(rule: Rule): string {
  const ttl = rule.slot_ttl;
  if (ttl === undefined) return '60 seconds';
  if (typeof ttl === 'number' || /^\d+$/.test(ttl)) return plural(Number(ttl), 'second');
  const seconds = windowSeconds({ window: ttl });
  return seconds === undefined ? ttl : span(seconds);
}

/** The limit of each plan that has its own, of all limits of a rule. */
export function planTexts(rule: Rule): string[] {
  return limitsOf(rule).flatMap((limit) => plansOf(rule, limit));
}

function plansOf(rule: Rule, limit: RuleLimit): string[] {
  return Object.entries(limit.tier_limits ?? {}).map(([tier, quota]) => {
    if (quota === 'unlimited') return `${tier} has no limit`;
    return quota === 0 ? `${tier} is suspended` : `${tier} gets ${rule.unit === 'money' ? decimalMoney(quota, rule.currency) : figure(quota)}`;
  });
}

function tiers(rule: Rule, limit: RuleLimit): string[] {
  const each = plansOf(rule, limit);
  return each.length === 0 ? [] : [`By plan: ${each.join('; ')}.`];
}

function costs(rule: Rule): string[] {
  if (!rule.costs || rule.costs.length === 0) return [];
  const each = rule.costs.map(({ method, endpoint, cost }) => {
    const what = [method, endpoint].filter(Boolean).join(' ');
    return `${what === '' ? 'any request' : what} costs ${count(cost)}`;
  });
  return [`${upper(each.join('; '))}; anything else costs 1.`];
}

function beyond(rule: Rule): string {
  switch (rule.action) {
    case 'throttle': {
      const most = rule.max_delay_ms;
      return `Beyond that, requests wait their turn${most === undefined ? '' : `, up to ${count(most)} ms`}; who would wait longer is refused.`;
    }
    case 'queue':
      return 'Beyond that, the gateway keeps requests and sends them on when there is room.';
    case 'log_only':
      return 'Nothing is refused: the rule only reports what it would have refused.';
    default:
      return 'Beyond that, requests are refused with the time to retry after.';
  }
}

function soft(rule: Rule): string[] {
  return rule.soft_limit === undefined ? [] : [`From ${percent(rule.soft_limit)} used on, answers carry a warning.`];
}

function company(rule: Rule): string[] {
  const said: string[] = [];
  if (rule.scope && rule.scope !== rule.rule_id) {
    const rank = rule.priority ? ` (priority ${String(rule.priority)} among equals)` : '';
    said.push(`Rules of the scope ${rule.scope} are alternatives: only the most specific one applies${rank}.`);
  }
  const overrides = textsOf(rule.overrides);
  if (overrides.length > 0) said.push(`Where it applies, it replaces ${list(overrides)}.`);
  if (rule.quota_mode) said.push('It is one of several budgets: a request is refused only when all of them are used up.');
  return said;
}

function storage(rule: Rule): string[] {
  const said: string[] = [];
  if (rule.consistency === 'leased') {
    const most = percent(rule.max_overshoot ?? 0.01);
    said.push(`Nodes take quota ahead of need, so up to ${most} more or less may pass.`);
  }
  if (rule.consistency === 'local') said.push('Each node counts alone: several nodes together let several times as many pass.');
  if (rule.store) said.push(`Counted in the store ${rule.store}.`);
  const outcomes: Record<string, string> = {
    local: 'each node decides on its share of the limit',
    open: 'requests pass',
    closed: 'requests are refused',
  };
  const outcome = outcomes[rule.on_store_failure ?? ''];
  if (outcome) said.push(`While the store is unavailable, ${outcome}.`);
  return said;
}

function period(rule: Rule): string[] {
  return [...dates(rule), ...schedules(rule)];
}

/** When a rule, or one of its limits, holds. */
function schedules(rule: Rule): string[] {
  const said = rule.active_when ? [`Active ${windows(rule.active_when)}.`] : [];
  for (const limit of rule.limits ?? []) {
    if (limit.active_when) said.push(`The limit of ${amount(rule, limit)} holds ${windows(limit.active_when)}.`);
  }
  return said;
}

function windows(active: NonNullable<RuleLimit['active_when']>): string {
  return list(
    active.map(({ days, from, to, timezone }) => {
      const on = days === undefined ? 'every day' : `on ${list(typeof days === 'string' ? [days] : days)}`;
      return `${on} from ${from ?? '00:00'} to ${to ?? '24:00'} (${timezone ?? 'UTC'})`;
    }),
  );
}

function dates(rule: Rule): string[] {
  const { starts_at: from, ends_at: until } = rule;
  if (from && until) return [`In force from ${from} until ${until}.`];
  if (from) return [`In force from ${from} on.`];
  return until ? [`In force until ${until}.`] : [];
}

function upper(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
