import { describe, expect, it } from 'vitest';
import type { Rule } from '../api/types';
import { headline, summary } from './ruleSummary';

const rule = (fields: Partial<Rule>): Rule => ({ rule_id: 'r', identifier_type: 'user_id', limit: 100, window: '1h', ...fields });
const all = (fields: Partial<Rule>) => summary(rule(fields)).join(' ');

describe('the first sentence', () => {
  it.each<[Partial<Rule>, string]>([
    [{ applies_to: { models: ['gpt4'] } }, 'Each user may make 100 requests per hour to model gpt4.'],
    [{ identifier_type: 'api_key', window: '5m' }, 'Each API key may make 100 requests per 5 minutes.'],
    [{ identifier_type: 'global', window_ms: 500 }, 'All callers together may make 100 requests per 500 ms.'],
    [{ identifier_type: 'tenant_id', window_seconds: 86400 }, 'Each tenant may make 100 requests per day.'],
    [{ identifier_type: 'ip', limit: 1, window: '1s' }, 'Each IP address may make 1 request per second.'],
    [{ identifier_type: 'client' }, 'Each client (its API key, else its user, else its IP address) may make 100 requests per hour.'],
    [{ identifier_type: 'composite', key_by: ['user_id', 'model_id'] }, 'Each combination of user and model may make 100 requests per hour.'],
    [{ identifier_type: 'composite', key_by: ['project'] }, 'Each project may make 100 requests per hour.'],
    [{ unit: 'tokens', limit: 100000, window: '1m' }, 'Each user may use 100,000 tokens per minute.'],
    [{ unit: 'cost', window: '90s' }, 'Each user may spend 100 cost units per 90 seconds.'],
    [{ unit: 'concurrency', limit: 2 }, 'Each user may have 2 requests under way at the same time.'],
    [{ limit: 0 }, 'Each user is suspended: every request is refused.'],
    [{ limit: 'unlimited', applies_to: { tenants: 'acme' } }, 'Each user is not limited in tenant acme.'],
  ])('%j', (fields, words) => {
    expect(headline(rule(fields))).toBe(words);
  });

  it('names calendars with their zone and day', () => {
    expect(headline(rule({ window: undefined, calendar: 'month', timezone: 'Europe/Berlin', anchor_day: 15 }))).toBe(
      'Each user may make 100 requests per calendar month from day 15 on (Europe/Berlin).',
    );
    expect(headline(rule({ window: undefined, calendar: 'day' }))).toContain('per calendar day (UTC)');
  });

  it('lists several limits at once', () => {
    const several = rule({ limit: undefined, window: undefined, limits: [{ limit: 10, window: '1s' }, { limit: 300, window: '1m' }, { limit: 5000, calendar: 'day' }] });
    expect(headline(several)).toBe('Each user may make 10 requests per second, 300 requests per minute and 5,000 requests per calendar day (UTC).');
  });

  it('says where it applies', () => {
    const applies = { endpoints: ['/sign-up', '/join'], methods: ['post'], user_tiers: ['free', 'pro'], client_types: ['EXTERNAL'], users: ['ann'], api_keys: ['a', 'b'], domains: ['edge'], model_tiers: ['large'], attributes: { region: 'eu-*' } };
    expect(headline(rule({ applies_to: applies }))).toBe(
      'Each user may make 100 requests per hour on POST /sign-up or /join, to model tier large, on plans free or pro, as client type EXTERNAL, by user ann, with 2 listed API keys, in domain edge, where region is eu-*.',
    );
    expect(headline(rule({ applies_to: { methods: ['GET'] } }))).toContain('with GET');
  });
});

describe('the other sentences', () => {
  it('say how it counts', () => {
    expect(all({ limit: 60, window: '1m' })).toContain('It refills continuously, one every second; at most 60 at once.');
    expect(all({ limit: 600, window: '1m', burst: 20 })).toContain('one every 100 ms; at most 20 at once.');
    expect(all({ algorithm: 'gcra', limit: 5, window: '1s' })).toContain('Evenly spaced, one every 200 ms; never two at once.');
    expect(all({ algorithm: 'leaky_bucket', limit: 5, window: '1s', burst: 10 })).toContain('Requests leave one every 200 ms; at most 10 wait their turn.');
    expect(all({ algorithm: 'sliding_window_log' })).toContain('Exactly so many in any hour you look at.');
    expect(all({ algorithm: 'sliding_window_counter', window: '2h' })).toContain('Measured over a sliding 2 hours');
    expect(all({ algorithm: 'fixed_window' })).toContain('Counted anew at every full hour of the clock.');
    expect(all({ unit: 'concurrency', slot_ttl: '5m' })).toContain('after 5 minutes without a renewal');
    expect(all({ unit: 'concurrency' })).toContain('after 60 seconds');
    expect(all({ limit: 3_000_000, window: '1s' })).toContain('one every 0.333 µs');
  });

  it('say what plans get', () => {
    expect(all({ tier_limits: { pro: 10000, enterprise: 'unlimited', trial: 0 } })).toContain('By plan: pro gets 10,000; enterprise has no limit; trial is suspended.');
  });

  it('say what happens beyond', () => {
    expect(all({})).toContain('requests are refused with the time to retry after');
    expect(all({ action: 'throttle', max_delay_ms: 500 })).toContain('wait their turn, up to 500 ms; who would wait longer is refused');
    expect(all({ action: 'queue' })).toContain('the gateway keeps requests');
    expect(all({ action: 'log_only' })).toContain('only reports');
    expect(all({ soft_limit: 0.8 })).toContain('From 80 % used on, answers carry a warning.');
  });

  it('say how it stands to others, and where it counts', () => {
    expect(all({ scope: 'api', priority: 5 })).toContain('Rules of the scope api are alternatives: only the most specific one applies (priority 5 among equals).');
    expect(all({ scope: 'r' })).not.toContain('alternatives');
    expect(all({ overrides: ['users', 'tenants'] })).toContain('it replaces users and tenants.');
    expect(all({ quota_mode: true })).toContain('only when all of them are used up');
    expect(all({ consistency: 'leased', max_overshoot: 0.05 })).toContain('up to 5 % more or less may pass');
    expect(all({ consistency: 'leased' })).toContain('up to 1 %');
    expect(all({ consistency: 'local' })).toContain('Each node counts alone');
    expect(all({ on_store_failure: 'closed', store: 'eu' })).toContain('Counted in the store eu. While the store is unavailable, requests are refused.');
    expect(all({ starts_at: '2027-01-01T00:00:00Z', ends_at: '2027-02-01T00:00:00Z' })).toContain('In force from 2027-01-01T00:00:00Z until 2027-02-01T00:00:00Z.');
    expect(all({ active_when: [{ days: ['sat', 'sun'], timezone: 'Europe/Berlin' }, { from: '22:00', to: '06:00' }] })).toContain(
      'Active on sat and sun from 00:00 to 24:00 (Europe/Berlin) and every day from 22:00 to 06:00 (UTC).',
    );
    expect(all({ limits: [{ limit: 2, window: '1h', active_when: [{ days: 'mon' }] }] })).toContain('The limit of 2 requests per hour holds on mon from 00:00 to 24:00 (UTC).');
    expect(all({ costs: [{ endpoint: '/v1/reports/*', method: 'POST', cost: 25 }, { endpoint: '/v1/health', cost: 0 }] })).toContain('POST /v1/reports/* costs 25; /v1/health costs 0; anything else costs 1.');
  });

  it('say first that it is off', () => {
    expect(summary(rule({ is_active: false }))[0]).toContain('Switched off');
  });

  it('have something to say of a rule that is not finished', () => {
    expect(summary({ rule_id: '' })[0]).toBe('All callers together may make ? requests per ?.');
    expect(summary(rule({ window: '1x', limits: [] })).length).toBeGreaterThan(0);
  });
});
