import { describe, expect, it } from 'vitest';
import type { Rule } from '../api/types';
import { isEditable, limitChanges, limitPlace, ownRule, ownRuleHref, raiseHref } from './raise';

const RULE: Rule = { rule_id: 'per-user', identifier_type: 'user_id', limits: [{ limit: 10, window: '1s' }, { limit: 100, window: '1m' }, { limit: 1000, calendar: 'day' }] };

describe('raising a limit', () => {
  it('opens the editor of the rule, with the limit of that window', () => {
    expect(raiseHref('per user', 60, 'ann')).toBe('/rules/per%20user?raise=60&for=ann');
    expect(raiseHref('slots', 0)).toBe('/rules/slots?raise=limit');
    expect(['1', '60', '86400', '5', 'limit'].map((window) => limitPlace(RULE, window))).toEqual([0, 1, 2, 0, 0]);
  });

  it('is for rules that can be edited', () => {
    expect([null, 'default', 'virtual_key.budget', 'per-user'].map(isEditable)).toEqual([false, false, false, true]);
  });

  it('says what changes, before and after', () => {
    const after = { ...RULE, limits: [{ limit: 10, window: '1s' }, { limit: 200, window: '1m' }] };
    expect(limitChanges(RULE, after)).toEqual([
      { before: '100 requests per minute', after: '200 requests per minute' },
      { before: '1,000 requests per calendar day (UTC)', after: null },
    ]);
    expect(limitChanges(RULE, RULE)).toEqual([]);
  });
});

describe('a rule for one client', () => {
  it('is like the one that refused, and applies in its place', () => {
    expect(ownRuleHref('per-user', { type: 'user_id', id: 'ann' })).toBe('/rules/new?like=per-user&user_id=ann');
    expect(ownRuleHref('default', { type: 'tenant_id', id: 'acme' })).toBe('/rules/new?tenant_id=acme');
    expect(ownRule(RULE, { type: 'user_id', id: 'ann@example.com' })).toMatchObject({ rule_id: 'per-user-ann-example.com', scope: 'per-user', applies_to: { users: ['ann@example.com'] }, limits: RULE.limits });
    expect(ownRule(null, { type: 'tenant_id', id: 'acme' })).toMatchObject({ rule_id: 'for-acme', identifier_type: 'tenant_id', applies_to: { tenants: ['acme'] } });
  });
});
