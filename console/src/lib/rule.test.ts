import { describe, expect, it } from 'vitest';
import type { Rule } from '../api/types';
import {
  algorithmOf, fresh, limitsOf, parseRule, printRule, quotaOf, splitTexts, textsOf, windowSeconds, windowText, withApplies, withCalendar, withField, withLimits, withWindow,
} from './rule';
import { check } from './ruleCheck';

const flat: Rule = { rule_id: 'r', name: 'n', limit: 5, window: '1m', algorithm: 'gcra', burst: 2, tier_limits: { pro: 9 } };

describe('limits', () => {
  it('are the same, written flat or as a list', () => {
    const limits = limitsOf(flat);
    expect(limits).toEqual([{ limit: 5, window: '1m', algorithm: 'gcra', burst: 2, tier_limits: { pro: 9 } }]);
    expect(withLimits(flat, limits)).toEqual(flat);
    expect(limitsOf({ rule_id: 'r', limits })).toEqual(limits);
  });

  it('become a list when there are several, and flat again', () => {
    const [one] = limitsOf(flat);
    if (!one) throw new Error('there is one');
    const two = withLimits(flat, [one, { limit: 1, window: '1s' }]);
    expect(two).toEqual({ rule_id: 'r', name: 'n', limits: [one, { limit: 1, window: '1s' }] });
    expect(withLimits(two, [one])).toEqual(flat);
  });

  it('have one kind of window', () => {
    expect(withWindow({ limit: 1, calendar: 'month', timezone: 'UTC', anchor_day: 3 }, ' 5s ')).toEqual({ limit: 1, window: '5s' });
    expect(withWindow({ limit: 1, window_seconds: 3 }, '')).toEqual({ limit: 1 });
    expect(withCalendar({ limit: 1, window: '1s', burst: 3, algorithm: 'gcra' }, 'day')).toEqual({ limit: 1, calendar: 'day' });
    expect(windowSeconds({ window: '2h' })).toBe(7200);
    expect(windowSeconds({ window_ms: 1500 })).toBe(1.5);
    expect(windowSeconds({ window: 'soon' })).toBeUndefined();
    expect([windowText({ window_seconds: 60 }), windowText({ window_ms: 5 }), windowText({})]).toEqual(['60s', '5ms', '']);
  });

  it('have the algorithm that the server would take', () => {
    expect(algorithmOf({ rule_id: 'r' }, {})).toBe('token_bucket');
    expect(algorithmOf({ rule_id: 'r' }, { calendar: 'day' })).toBe('fixed_window');
    expect(algorithmOf({ rule_id: 'r', unit: 'concurrency' }, {})).toBe('concurrency');
  });
});

describe('fields', () => {
  it('go when they are empty, and nothing else does', () => {
    const rule = { ...flat, costs: [{ cost: 3 }] };
    expect(withField(rule, 'name', '')).not.toHaveProperty('name');
    expect(withField(rule, 'overrides', [])).not.toHaveProperty('overrides');
    expect(withField(rule, 'scope', 's')).toEqual({ ...rule, scope: 's' });
    expect(withApplies(rule, 'models', ['a'])).toEqual({ ...rule, applies_to: { models: ['a'] } });
    expect(withApplies({ ...rule, applies_to: { models: ['a'] } }, 'models', [])).toEqual(rule);
    expect(withApplies({ ...rule, applies_to: { models: 'a', attributes: { x: 'y' } } }, 'models', [])).toEqual({ ...rule, applies_to: { attributes: { x: 'y' } } });
  });

  it('are typed as people type', () => {
    expect(splitTexts(' a, b ,,c\nd ')).toEqual(['a', 'b', 'c', 'd']);
    expect(textsOf(undefined)).toEqual([]);
    expect(textsOf('x')).toEqual(['x']);
    expect([quotaOf(''), quotaOf('10 000'), quotaOf('unlimited'), quotaOf('many')]).toEqual([undefined, 10000, 'unlimited', 'many']);
  });
});

describe('JSON', () => {
  it('comes back as it was', () => {
    const rule: Rule = { ...flat, applies_to: { endpoints: ['/a/*'], attributes: { region: ['eu', 'us'] } }, overrides: ['DEFAULT'], quota_mode: true };
    expect(parseRule(printRule(rule))).toEqual({ rule });
    expect(printRule({ limit: 1, rule_id: 'a' })).toBe('{\n  "rule_id": "a",\n  "limit": 1\n}');
  });

  it('that is none says so', () => {
    expect(parseRule('{')).toHaveProperty('problem');
    expect(parseRule('[1]')).toEqual({ problem: 'A rule is a JSON object: { … }' });
  });
});

describe('what is wrong', () => {
  const fields = (rule: Partial<Rule>) => check({ rule_id: 'r', limit: 1, window: '1m', ...rule }).map((fault) => fault.field);

  it('is said with its field', () => {
    expect(check(fresh()).map((fault) => fault.field)).toEqual(['rule_id']);
    expect(fields({})).toEqual([]);
    expect(fields({ rule_id: 'a b' })).toEqual(['rule_id']);
    expect(fields({ identifier_type: 'composite' })).toEqual(['key_by']);
    expect(fields({ limit: undefined, window: undefined })).toEqual(['limit', 'window']);
    expect(fields({ limit: -1 })).toEqual(['limit']);
    expect(fields({ limit: 'lots' })).toEqual(['limit']);
    expect(fields({ window: '1x' })).toEqual(['window']);
    expect(fields({ algorithm: 'fixed_window', burst: 3 })).toEqual(['burst']);
    expect(fields({ burst: 0 })).toEqual(['burst']);
    expect(fields({ window: undefined, calendar: 'day', algorithm: 'gcra' })).toEqual(['algorithm']);
    expect(fields({ soft_limit: 80 })).toEqual(['soft_limit']);
    expect(fields({ max_delay_ms: 5 })).toEqual(['max_delay_ms']);
    expect(fields({ action: 'throttle', algorithm: 'fixed_window' })).toEqual(['action']);
    expect(fields({ starts_at: 'soon' })).toEqual(['starts_at']);
    expect(fields({ starts_at: '2027-02-01T00:00:00Z', ends_at: '2027-01-01T00:00:00Z' })).toEqual(['ends_at']);
    expect(fields({ unit: 'concurrency', window: undefined })).toEqual([]);
  });

  it('is said with its place in a list', () => {
    const rule: Rule = { rule_id: 'r', limits: [{ limit: 1, window: '1s' }, { limit: 2 }] };
    expect(check(rule).map((fault) => fault.field)).toEqual(['limits[1].window']);
  });
});
