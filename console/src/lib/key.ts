// A virtual key as the form sees it: what may be set of it, what is wrong with it, and what it means in plain words.
import type { KeyBudget, KeyLimit, VirtualKey } from '../api/types';
import { instant, list, short, span } from './format';
import { decimalMoney, nanosOf } from './money';
import { splitTexts, windowSeconds } from './rule';
import type { Fault } from './ruleCheck';
import { amount, verb } from './ruleSummary';

/** What may be set of a key. */
export interface KeyDraft {
  name: string;
  owner?: string;
  tenant_id?: string;
  tags?: Record<string, string>;
  models?: string[];
  limits?: KeyLimit[];
  budget?: KeyBudget;
  expires_at?: string;
}

const MAX_NAME_BYTES = 128;
const MAX_VALUE_BYTES = 256;
const MAX_TAGS = 8;
const MAX_MODELS = 64;
export const MAX_LIMITS = 8;
/** Attributes that requests have already: no tag may be called so. */
const ATTRIBUTES = ['user_id', 'tenant_id', 'api_key', 'ip', 'model_id', 'model_tier', 'client_type', 'tier', 'endpoint', 'method', 'domain'];

/** The part of a key that can be sent back. */
export function draftOf(key: VirtualKey): KeyDraft {
  const { name, owner, tenant_id, tags, models, limits, budget, expires_at } = key;
  const parts = { owner, tenant_id, tags, models, limits, budget, expires_at };
  const known = Object.entries(parts).filter(([, value]) => value !== undefined && value !== null);
  return { name, ...Object.fromEntries(known) };
}

/** The draft with a part set; an empty one is left out. */
export function keyWith<K extends keyof KeyDraft>(draft: KeyDraft, part: K, value: KeyDraft[K] | undefined): KeyDraft {
  const next = { ...draft };
  const isEmpty = value === undefined || value === '' || (Array.isArray(value) ? value.length === 0 : typeof value === 'object' && Object.keys(value).length === 0);
  if (isEmpty && part !== 'name') Reflect.deleteProperty(next, part);
  else next[part] = value as KeyDraft[K];
  return next;
}

/** Tags as they are typed: team=search, env=prod. */
export function tagsText(tags: Record<string, string> | null | undefined): string {
  return Object.entries(tags ?? {}).map(([name, value]) => `${name}=${value}`).join(', ');
}

export function parseTags(text: string): { tags: Record<string, string>; problem?: string } {
  const tags: Record<string, string> = {};
  for (const part of splitTexts(text)) {
    const [name = '', ...rest] = part.split('=').map((one) => one.trim());
    const value = rest.join('=');
    if (name === '' || value === '') return { tags, problem: `Write ${part.replace(/=.*/, '') || 'a tag'} with its value, such as team=search.` };
    if (ATTRIBUTES.includes(name)) return { tags, problem: `${name} is an attribute of every request; choose another name.` };
    if (tags[name] !== undefined) return { tags, problem: `${name} is given twice.` };
    tags[name] = value;
  }
  return Object.keys(tags).length > MAX_TAGS ? { tags, problem: `At most ${String(MAX_TAGS)} tags.` } : { tags };
}

const bytes = (text: string) => new TextEncoder().encode(text).length;

/** What is wrong, as far as it can be seen without the server. */
export function checkKey(draft: KeyDraft, tags: string, now: number): Fault[] {
  const faults: Fault[] = [];
  const say = (field: string, message: string | undefined) => {
    if (message !== undefined) faults.push({ field, message });
  };
  if (draft.name.trim() === '') say('name', 'Say what the key is for, such as search team.');
  else if (bytes(draft.name) > MAX_NAME_BYTES) say('name', `At most ${String(MAX_NAME_BYTES)} bytes.`);
  for (const part of ['owner', 'tenant_id'] as const) if (bytes(draft[part] ?? '') > MAX_VALUE_BYTES) say(part, `At most ${String(MAX_VALUE_BYTES)} bytes.`);
  say('tags', parseTags(tags).problem);
  if ((draft.models?.length ?? 0) > MAX_MODELS) say('models', `At most ${String(MAX_MODELS)} models.`);
  (draft.limits ?? []).forEach((limit, index) => checkLimit(limit, (field, message) => say(`limits[${String(index)}].${field}`, message)));
  if (draft.budget) checkBudget(draft.budget, (field, message) => say(`budget.${field}`, message));
  const end = draft.expires_at === undefined ? null : Date.parse(draft.expires_at);
  if (end !== null && Number.isNaN(end)) say('expires_at', 'A date and a time.');
  else if (end !== null && end <= now) say('expires_at', 'This is in the past: the key would never work.');
  return faults;
}

function checkLimit(limit: KeyLimit, say: (field: string, message: string) => void) {
  const { unit, currency, limit: quota } = limit;
  const isMoney = unit === 'money';
  const isFine = isMoney ? nanosOf(quota ?? '') !== null : typeof quota === 'number' && Number.isInteger(quota) && quota >= 0;
  if (!isFine && quota !== 'unlimited') say('limit', isMoney ? 'An amount such as 5.00.' : 'A whole number of 0 or more.');
  if (isMoney && !isCurrency(currency)) say('currency', 'A code of three letters, such as USD.');
  if (unit !== 'concurrency' && !limit.calendar && windowSeconds(limit) === undefined) say('window', limit.window ? 'Write it as 500ms, 5s, 1m, 1h, 1d or 1w.' : 'In which time? Such as 1m.');
}

function checkBudget(budget: KeyBudget, say: (field: string, message: string) => void) {
  const nanos = nanosOf(budget.amount);
  if (nanos === null) say('amount', 'An amount such as 5.00, with at most nine decimals.');
  else if (nanos === 0) say('amount', 'More than 0. To stop a key, revoke it.');
  if (!isCurrency(budget.currency)) say('currency', 'A code of three letters, such as USD.');
  if (!budget.calendar && windowSeconds({ ...(budget.window === undefined ? {} : { window: budget.window }) }) === undefined) say('window', 'In which time? Such as 30d.');
}

const isCurrency = (code: string | undefined) => /^[A-Z]{3}$/.test(code ?? '');

/** How much a key may use, a phrase for each limit. */
export function limitTexts({ limits }: Pick<KeyDraft, 'limits'> | { limits?: KeyLimit[] | null }): string[] {
  return (limits ?? []).map((limit) => amount(limit, limit));
}

const PERIODS: Record<number, string> = { 1: 's', 60: 'min', 3_600: 'h', 86_400: 'd', 604_800: 'week' };

/** A limit in few words, for lists: 600 requests/min. */
export function limitShort(limit: KeyLimit): string {
  const { unit, currency, limit: quota, calendar } = limit;
  const figure = quota === undefined || quota === 'unlimited' ? 'unlimited' : unit === 'money' ? decimalMoney(quota, currency) : typeof quota === 'number' ? short(quota) : quota;
  if (unit === 'concurrency') return `${figure} at once`;
  const seconds = windowSeconds(limit);
  const period = calendar ?? (seconds === undefined ? '?' : PERIODS[seconds] ?? span(seconds));
  return `${figure}${unit === 'money' ? '' : ` ${(unit ?? 'requests').replace('_', ' ')}`}/${period}`;
}

/** A budget in words: 5.00 USD per calendar month (UTC). */
export function budgetText(budget: KeyBudget): string {
  const { amount: sum, currency, calendar, timezone, anchor_day: day, window } = budget;
  const period = { ...(calendar ? { calendar } : {}), ...(timezone ? { timezone } : {}), ...(day ? { anchor_day: day } : {}), ...(window ? { window } : {}) };
  return amount({ unit: 'money', currency }, { ...period, limit: sum });
}

/** A budget in few words, for lists: 5.00 USD a month. */
export function budgetShort({ amount: sum, currency, calendar, window }: KeyBudget): string {
  return `${decimalMoney(sum, currency)} ${calendar ? `a ${calendar}` : `in ${window ?? '?'}`}`;
}

/** Everything there is to say, a sentence each. */
export function keySummary(draft: KeyDraft): string[] {
  const uses = [...(draft.limits ?? []).map((limit) => `${verb(limit)} ${amount(limit, limit)}`), ...(draft.budget ? [`spend ${budgetText(draft.budget)}`] : [])];
  const { owner, tenant_id: tenant, models, budget, expires_at: ends } = draft;
  const whose = [owner ? `the user ${owner}` : '', tenant ? `the tenant ${tenant}` : ''].filter((part) => part !== '');
  return [
    uses.length === 0 ? 'It has no limits of its own: the rules alone decide.' : `Its holder may ${list(uses)}.`,
    ...(uses.length === 0 ? [] : ['All rules apply as well.']),
    models ? `It works for ${models.length === 1 ? 'the model' : 'the models'} ${list(models)} only.` : 'It works for all models.',
    ...(whose.length > 0 ? [`Its requests are those of ${list(whose)}.`] : []),
    ...(budget ? [`Beyond its budget, calls are refused with 429 insufficient_quota. While the store does not answer, ${budget.mode === 'soft' ? 'the policy of the client type decides (soft)' : 'calls are refused (hard)'}.`] : []),
    ends ? `It ends ${instant(ends)}.` : 'It does not end by itself.',
  ];
}

export const KEY_STATES = [
  { value: 'all', name: 'All' },
  { value: 'active', name: 'Active' },
  { value: 'disabled', name: 'Disabled' },
  { value: 'expired', name: 'Expired' },
] as const;
export type KeyState = (typeof KEY_STATES)[number]['value'];

/** Whether a key fits what is looked for: in its name, id, owner, tenant, tags and models. */
export function matchesKey(key: VirtualKey, text: string, state: KeyState): boolean {
  if (state !== 'all' && key.status !== state) return false;
  const wanted = text.trim().toLowerCase();
  if (wanted === '') return true;
  return [key.name, key.id, key.owner, key.tenant_id, tagsText(key.tags), ...(key.models ?? [])].some((part) => part?.toLowerCase().includes(wanted));
}

export const OVERLAPS = [
  ['', 'at once'],
  ['15m', 'after 15 minutes'],
  ['1h', 'after an hour'],
  ['1d', 'after a day'],
  ['7d', 'after a week'],
  ['30d', 'after 30 days'],
] as const;
