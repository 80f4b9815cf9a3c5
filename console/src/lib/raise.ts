// From a decision to the rule editor: which limit is meant, what changes, and a rule for one client alone.
import type { Rule, RuleLimit } from '../api/types';
import { fresh, limitsOf, windowSeconds } from './rule';
import { amount } from './ruleSummary';
import { type Client } from './subject';
import { KEY_RULES } from './units';

/** The lengths of calendar periods, as decisions state them. */
const CALENDAR_SECONDS: Record<string, number> = { minute: 60, hour: 3_600, day: 86_400, week: 604_800, month: 2_592_000, year: 31_536_000 };

/** Whether there is a rule that can be edited: neither the built-in default nor a limit of a virtual key. */
export const isEditable = (ruleId: string | null): ruleId is string => ruleId !== null && ruleId !== 'default' && !ruleId.startsWith(KEY_RULES);

/** The address of the editor with a limit of a rule in focus. */
export function raiseHref(ruleId: string, window: number | null | undefined, client?: string): string {
  const query = new URLSearchParams({ raise: window ? String(window) : 'limit', ...(client ? { for: client } : {}) });
  return `/rules/${encodeURIComponent(ruleId)}?${query.toString()}`;
}

/** The place of the limit with this window; the first if none has it. */
export function limitPlace(rule: Rule, window: string): number {
  const wanted = Number(window);
  const place = limitsOf(rule).findIndex((limit) => (limit.calendar ? CALENDAR_SECONDS[limit.calendar] : windowSeconds(limit)) === wanted);
  return Math.max(0, place);
}

export interface LimitChange {
  before: string | null;
  after: string | null;
}

/** The limits that differ, in plain words. */
export function limitChanges(before: Rule, after: Rule): LimitChange[] {
  const [old, now] = [limitsOf(before), limitsOf(after)];
  const text = (rule: Rule, limit: RuleLimit | undefined) => (limit ? amount(rule, limit) : null);
  const pairs = Array.from({ length: Math.max(old.length, now.length) }, (_, place) => ({ before: text(before, old[place]), after: text(after, now[place]) }));
  return pairs.filter((pair) => pair.before !== pair.after);
}

/** Clients that a rule can name. */
export const isNameable = ({ type }: Client) => type === 'user_id' || type === 'tenant_id';

/** The address of a new rule for one client, like the one that refused it. */
export function ownRuleHref(ruleId: string | null, { type, id }: Client): string {
  const query = new URLSearchParams({ ...(isEditable(ruleId) ? { like: ruleId } : {}), [type]: id });
  return `/rules/new?${query.toString()}`;
}

/** A rule for one client. It has the scope of the rule that it is like, so that it applies in its place. */
export function ownRule(like: Rule | null, { type, id }: Client): Rule {
  const named = type === 'tenant_id' ? { tenants: [id] } : { users: [id] };
  const slug = id.replace(/[^A-Za-z0-9._-]+/g, '-').replace(/^-+|-+$/g, '');
  if (!like) return { ...fresh(), rule_id: `for-${slug}`, identifier_type: type === 'tenant_id' ? 'tenant_id' : 'user_id', applies_to: named };
  return { ...like, rule_id: `${like.rule_id}-${slug}`, name: `${like.name ?? like.rule_id}, for ${id}`, scope: like.scope ?? like.rule_id, applies_to: { ...like.applies_to, ...named } };
}
