// A rule as the form sees it. The rule's JSON is the one truth: the form reads parts of it and writes parts of it,
// so nothing that the form does not know is lost.
import type { AppliesTo, Quota, Rule, RuleLimit, Texts } from '../api/types';

export const ALGORITHMS = [
  'token_bucket',
  'fixed_window',
  'sliding_window_log',
  'sliding_window_counter',
  'leaky_bucket',
  'gcra',
  'concurrency',
] as const;
export type Algorithm = (typeof ALGORITHMS)[number];

/** Algorithms with a burst of their own. */
export const BUCKETS: readonly string[] = ['token_bucket', 'leaky_bucket', 'gcra'];

export const CALENDARS = ['minute', 'hour', 'day', 'week', 'month', 'year'] as const;
export const IDENTIFIERS = ['api_key', 'user_id', 'tenant_id', 'ip', 'client', 'global', 'composite'] as const;
export const UNITS = ['requests', 'tokens', 'input_tokens', 'output_tokens', 'cached_tokens', 'cost', 'money', 'concurrency'] as const;
export const ACTIONS = ['reject', 'throttle', 'queue', 'log_only'] as const;
export const APPLIES = [
  'endpoints',
  'methods',
  'models',
  'model_tiers',
  'user_tiers',
  'client_types',
  'tenants',
  'users',
  'api_keys',
  'domains',
] as const;
export type AppliesField = (typeof APPLIES)[number];

/** The fields that stand in a limit, or in a rule that has one limit. */
const LIMIT_FIELDS = [
  'limit',
  'window_seconds',
  'window_ms',
  'window',
  'calendar',
  'timezone',
  'anchor_day',
  'algorithm',
  'burst',
  'tier_limits',
] as const satisfies readonly (keyof RuleLimit)[];

/** What a new rule begins with. */
export function fresh(): Rule {
  return { rule_id: '', identifier_type: 'user_id', algorithm: 'token_bucket', limit: 100, window: '1m' };
}

/** The limits of a rule, whichever way they are written. */
export function limitsOf(rule: Rule): RuleLimit[] {
  if (Array.isArray(rule.limits) && rule.limits.length > 0) return rule.limits;
  const one: Record<string, unknown> = {};
  for (const field of LIMIT_FIELDS) if (rule[field] !== undefined) one[field] = rule[field];
  return [one];
}

/** The rule with these limits: one is written into the rule itself, several as a list. */
export function withLimits(rule: Rule, limits: RuleLimit[]): Rule {
  const rest: Record<string, unknown> = { ...rule };
  for (const field of LIMIT_FIELDS) Reflect.deleteProperty(rest, field);
  delete rest['limits'];
  const [first] = limits;
  if (limits.length === 1 && first) return { ...rest, ...first } as Rule;
  return { ...rest, limits } as Rule;
}

/** The rule with a field set; an empty value takes the field away. */
export function withField<K extends keyof Rule>(rule: Rule, field: K, value: Rule[K] | undefined | ''): Rule {
  const next = { ...rule };
  if (value === undefined || value === '' || (Array.isArray(value) && value.length === 0)) Reflect.deleteProperty(next, field);
  else next[field] = value;
  return next;
}

export function limitWith<K extends keyof RuleLimit>(limit: RuleLimit, field: K, value: RuleLimit[K] | undefined | ''): RuleLimit {
  const next = { ...limit };
  if (value === undefined || value === '') Reflect.deleteProperty(next, field);
  else next[field] = value;
  return next;
}

/** A value that may be one text or several. */
export function textsOf(value: Texts | undefined): string[] {
  if (value === undefined) return [];
  return (Array.isArray(value) ? value : [value]).map(String);
}

/** What somebody typed between commas. */
export function splitTexts(text: string): string[] {
  return text
    .split(/[,\n]/)
    .map((one) => one.trim())
    .filter((one) => one !== '');
}

export function withApplies(rule: Rule, field: AppliesField, values: string[]): Rule {
  const applies: AppliesTo = { ...rule.applies_to };
  if (values.length === 0) Reflect.deleteProperty(applies, field);
  else applies[field] = values;
  return withField(rule, 'applies_to', Object.keys(applies).length === 0 ? undefined : applies);
}

export function isUnlimited(quota: Quota | undefined): boolean {
  return quota === 'unlimited';
}

/** Reads a quota as typed: a number, or unlimited. Keeps anything else as it is, so that the check reports it. */
export function quotaOf(text: string): Quota | undefined {
  const trimmed = text.trim().replace(/[_ ]/g, '');
  if (trimmed === '') return undefined;
  return /^\d+$/.test(trimmed) ? Number(trimmed) : trimmed;
}

const WINDOW = /^(\d+)(ms|s|m|h|d|w)$/;
const WINDOW_SECONDS: Record<string, number> = { ms: 0.001, s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 };

/** The length of a window in seconds; undefined where it has none or it cannot be read. */
export function windowSeconds(limit: RuleLimit): number | undefined {
  if (limit.window_seconds !== undefined) return limit.window_seconds;
  if (limit.window_ms !== undefined) return limit.window_ms / 1000;
  const [, value, unit] = WINDOW.exec(limit.window ?? '') ?? [];
  if (value === undefined || unit === undefined) return undefined;
  return Number(value) * (WINDOW_SECONDS[unit] ?? 0);
}

/** The window as it is typed. */
export function windowText(limit: RuleLimit): string {
  if (limit.window !== undefined) return limit.window;
  if (limit.window_seconds !== undefined) return `${String(limit.window_seconds)}s`;
  return limit.window_ms === undefined ? '' : `${String(limit.window_ms)}ms`;
}

export function withWindow(limit: RuleLimit, text: string): RuleLimit {
  const next = { ...limit };
  for (const field of ['window_seconds', 'window_ms', 'calendar', 'timezone', 'anchor_day'] as const) Reflect.deleteProperty(next, field);
  return limitWith(next, 'window', text.trim());
}

export function withCalendar(limit: RuleLimit, calendar: RuleLimit['calendar']): RuleLimit {
  const next = { ...limit, calendar };
  for (const field of ['window', 'window_seconds', 'window_ms', 'burst', 'algorithm'] as const) Reflect.deleteProperty(next, field);
  if (calendar !== 'month') Reflect.deleteProperty(next, 'anchor_day');
  return next;
}

/** The algorithm in force, where none is written. */
export function algorithmOf(rule: Rule, limit: RuleLimit): Algorithm {
  if (limit.algorithm) return limit.algorithm;
  if (rule.unit === 'concurrency') return 'concurrency';
  return limit.calendar ? 'fixed_window' : 'token_bucket';
}

/** A rule of JSON text, or why it is none. */
export function parseRule(text: string): { rule: Rule } | { problem: string } {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return { problem: 'A rule is a JSON object: { … }' };
    return { rule: value as Rule };
  } catch (error) {
    return { problem: error instanceof Error ? error.message : 'This is no JSON' };
  }
}

const ORDER = [
  'rule_id', 'name', 'description', 'is_active', 'scope', 'priority', 'identifier_type', 'key_by', 'unit', 'algorithm',
  'limit', 'burst', 'window', 'window_seconds', 'window_ms', 'calendar', 'timezone', 'anchor_day', 'limits', 'tier_limits',
  'applies_to',
];

/** The JSON of a rule in an order that reads well. */
export function printRule(rule: object): string {
  const rank = (name: string) => {
    const place = ORDER.indexOf(name);
    return place < 0 ? ORDER.length : place;
  };
  const fields = Object.entries(rule).sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b));
  return JSON.stringify(Object.fromEntries(fields), null, 2);
}
