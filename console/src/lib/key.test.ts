import { describe, expect, it } from 'vitest';
import type { VirtualKey } from '../api/types';
import { budgetShort, checkKey, draftOf, type KeyDraft, keySummary, keyWith, limitShort, limitTexts, matchesKey, parseTags, tagsText } from './key';

const NOW = Date.parse('2027-01-01T00:00:00Z');
const fields = (draft: KeyDraft, tags = '') => checkKey(draft, tags, NOW).map(({ field }) => field);
const KEY: VirtualKey = {
  id: 'key_1f0c6b2d7a9e4c35', name: 'search team', status: 'active', version: 3, owner: 'ann', tenant_id: 'acme', tags: { team: 'search' }, models: ['gpt-4o*'],
  limits: [{ limit: 60, window: '1m' }, { unit: 'tokens', limit: 100_000, calendar: 'day', timezone: 'Europe/Berlin' }],
  budget: { amount: '5.00', currency: 'USD', calendar: 'month' }, created_by: 'first', updated_by: 'first',
};

describe('a virtual key', () => {
  it('is sent back without what the server adds', () => {
    expect(draftOf(KEY)).toEqual({ name: 'search team', owner: 'ann', tenant_id: 'acme', tags: KEY.tags, models: KEY.models, limits: KEY.limits, budget: KEY.budget });
    expect(draftOf({ id: 'key_00', name: 'x', status: 'active', version: 1, owner: null, limits: null })).toEqual({ name: 'x' });
  });

  it('loses a part that is emptied, and keeps its name', () => {
    const draft = draftOf(KEY);
    expect(keyWith(keyWith(keyWith(draft, 'owner', ''), 'models', []), 'limits', [])).not.toHaveProperty('owner');
    expect(keyWith(draft, 'tags', {})).not.toHaveProperty('tags');
    expect(keyWith(draft, 'name', '').name).toBe('');
  });

  it('is found by name, id, owner, tenant, tag and model', () => {
    for (const text of ['SEARCH', 'key_1f0c', 'ann', 'acme', 'team=search', 'gpt-4o', '']) expect(matchesKey(KEY, text, 'all')).toBe(true);
    expect(matchesKey(KEY, 'bob', 'all')).toBe(false);
    expect(matchesKey(KEY, '', 'disabled')).toBe(false);
  });

  it('is said in plain words', () => {
    expect(keySummary(draftOf(KEY))[0]).toBe('Its holder may make 60 requests per minute, use 100,000 tokens per calendar day (Europe/Berlin) and spend 5.00 USD per calendar month (UTC).');
    expect(keySummary({ name: 'x' })).toEqual(['It has no limits of its own: the rules alone decide.', 'It works for all models.', 'It does not end by itself.']);
    expect(keySummary({ name: 'x', budget: { amount: '1', currency: 'EUR', window: '30d', mode: 'soft' } }).join(' ')).toContain('spend 1.00 EUR per 30 days');
    expect(limitTexts(KEY)).toEqual(['60 requests per minute', '100,000 tokens per calendar day (Europe/Berlin)']);
    expect((KEY.limits ?? []).map(limitShort)).toEqual(['60 requests/min', '100K tokens/day']);
    expect([limitShort({ unit: 'concurrency', limit: 2 }), limitShort({ unit: 'money', currency: 'EUR', limit: '0.5', window: '30s' })]).toEqual(['2 at once', '0.50 EUR/30 seconds']);
    expect(budgetShort({ amount: '5', currency: 'USD', calendar: 'month' })).toBe('5.00 USD a month');
  });
});

describe('the check of a virtual key', () => {
  it('takes what is right', () => {
    expect(fields(draftOf(KEY), 'team=search')).toEqual([]);
    expect(fields({ name: 'x', limits: [{ unit: 'concurrency', limit: 2 }, { unit: 'money', currency: 'USD', limit: '0.50', window: '1h' }], expires_at: '2027-01-02T00:00:00Z' })).toEqual([]);
  });

  it('names every field that is wrong', () => {
    expect(fields({ name: ' ', owner: 'é'.repeat(129), models: Array.from({ length: 65 }, String), expires_at: '2026-01-01T00:00:00Z' }, 'team')).toEqual(['name', 'owner', 'tags', 'models', 'expires_at']);
    expect(fields({ name: 'x', limits: [{ limit: -1, window: '1x' }, { unit: 'money', limit: 'much', calendar: 'day' }] })).toEqual(['limits[0].limit', 'limits[0].window', 'limits[1].limit', 'limits[1].currency']);
    expect(fields({ name: 'x', budget: { amount: '1.0000000001', currency: 'usd' } })).toEqual(['budget.amount', 'budget.currency', 'budget.window']);
    expect(fields({ name: 'x', budget: { amount: '0', currency: 'USD', calendar: 'month' } })).toEqual(['budget.amount']);
  });
});

describe('tags', () => {
  it('are read as they are written', () => {
    expect(parseTags(tagsText({ team: 'search', env: 'prod' }))).toEqual({ tags: { team: 'search', env: 'prod' } });
    expect(parseTags(' a = b=c , ')).toEqual({ tags: { a: 'b=c' } });
  });

  it('are refused without a value, twice, with the name of an attribute, or more than eight', () => {
    expect(parseTags('team').problem).toContain('team=search');
    expect(parseTags('a=1, a=2').problem).toContain('twice');
    expect(parseTags('user_id=ann').problem).toContain('user_id');
    expect(parseTags(Array.from({ length: 9 }, (_, index) => `t${String(index)}=1`).join(',')).problem).toContain('8');
  });
});
