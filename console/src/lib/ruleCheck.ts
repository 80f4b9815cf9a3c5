// Finds the problems of a rule that can be found without asking the server, while the user types.
import type { Rule } from '../api/types';
import { algorithmOf, BUCKETS, limitsOf, windowSeconds } from './rule';

export interface Fault {
  field: string;
  message: string;
}

const MAX_ID = 256;

export function check(rule: Rule): Fault[] {
  const faults: Fault[] = [];
  const say = (field: string, message: string) => void faults.push({ field, message });
  const id = rule.rule_id as string | undefined;
  if (!id) say('rule_id', 'Give the rule an id, such as per-user.');
  else if (id.length > MAX_ID) say('rule_id', `At most ${String(MAX_ID)} characters.`);
  else if (/\s/.test(id)) say('rule_id', 'No spaces: use - or _ instead.');
  if (rule.identifier_type === 'composite' && (rule.key_by ?? []).length === 0) {
    say('key_by', 'Name the attributes that make up the key, such as user_id, model_id.');
  }
  limits(rule, say);
  if (rule.soft_limit !== undefined && !(rule.soft_limit > 0 && rule.soft_limit <= 1)) {
    say('soft_limit', 'A share above 0 and up to 1, such as 0.8.');
  }
  if (rule.max_delay_ms !== undefined && rule.action !== 'throttle') {
    say('max_delay_ms', 'Only the action throttle has a longest wait.');
  }
  if (rule.action === 'throttle' && limitsOf(rule).some((limit) => !BUCKETS.includes(algorithmOf(rule, limit)))) {
    say('action', 'Throttling needs a bucket: token_bucket, leaky_bucket or gcra.');
  }
  const [from, until] = [rule.starts_at, rule.ends_at].map((text) => (text ? Date.parse(text) : undefined));
  if (Number.isNaN(from)) say('starts_at', 'An instant such as 2027-01-31T12:00:00Z.');
  if (Number.isNaN(until)) say('ends_at', 'An instant such as 2027-01-31T12:00:00Z.');
  if (from !== undefined && until !== undefined && from >= until) say('ends_at', 'Must be after the start.');
  return faults;
}

/** An amount of money: a number, or a text with up to nine decimals. */
function isAmount(value: unknown): boolean {
  return typeof value === 'number' ? value >= 0 : typeof value === 'string' && /^\d+(\.\d{1,9})?$/.test(value);
}

function limits(rule: Rule, say: (field: string, message: string) => void) {
  const several = Array.isArray(rule.limits);
  limitsOf(rule).forEach((limit, index) => {
    const field = (name: string) => (several ? `limits[${String(index)}].${name}` : name);
    const quota = limit.limit as unknown;
    if (quota === undefined) say(field('limit'), 'How many? A whole number, or unlimited.');
    else if (rule.unit === 'money') {
      if (quota !== 'unlimited' && !isAmount(quota)) say(field('limit'), 'An amount such as 5.00, or unlimited.');
    } else if (quota !== 'unlimited' && !(typeof quota === 'number' && Number.isInteger(quota) && quota >= 0)) {
      say(field('limit'), 'A whole number of 0 or more, or unlimited.');
    }
    const algorithm = algorithmOf(rule, limit);
    if (algorithm !== 'concurrency' && !limit.calendar && windowSeconds(limit) === undefined) {
      say(field('window'), limit.window ? 'Write it as 500ms, 5s, 1m, 1h, 1d or 1w.' : 'In which time? Such as 1m.');
    }
    if (limit.calendar && algorithm !== 'fixed_window') say(field('algorithm'), 'Calendar windows are fixed windows.');
    if (limit.burst !== undefined && !BUCKETS.includes(algorithm)) {
      say(field('burst'), 'Only token_bucket, leaky_bucket and gcra have a burst.');
    } else if (limit.burst !== undefined && !(typeof limit.burst === 'number' ? Number.isInteger(limit.burst) && limit.burst >= 1 : rule.unit === 'money' && isAmount(limit.burst))) {
      say(field('burst'), 'A whole number of 1 or more.');
    }
  });
}
