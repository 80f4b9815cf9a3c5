import { describe, expect, it } from 'vitest';
import { backOff } from '../api/connection';
import { may } from '../api/session';
import type { History, Identity, RuleEntry } from '../api/types';
import { matches } from '../pages/rules';
import { cell, csv } from './csv';
import { curl, quoted } from './curl';
import { diff, isSame } from './diff';
import { ago, bytes, count, list, millis, percent, plural, rate, roughly, short, span } from './format';
import { visible } from './virtual';
import { column, last, perSecond, refreshMillis, shares, sum, times } from './windows';

const history = (more: Partial<History> = {}): History => ({
  node: 'n', until: '2026-11-16T04:00:00Z', step_seconds: 5, steps: 2, nodes: 1, nodes_unread: 0, problem: null, values_left_out: 0,
  values: [
    { name: 'a', allowed: [1, 2], refused: [0, 1], would_deny: [] },
    { name: 'b', allowed: [0, 0], refused: [2, 3], would_deny: [] },
    { name: 'c', allowed: [0, 0], refused: [0, 0], would_deny: [] },
  ],
  ...more,
});

describe('chart windows', () => {
  const until = Date.parse('2026-11-16T04:00:00Z') / 1000;

  it('are as long as was asked, and end with the last step', () => {
    const axis = times(history(), 5, 0);
    expect(axis).toHaveLength(60);
    expect([axis[0], axis[59]]).toEqual([until - 59 * 5, until]);
    expect(times(history({ step_seconds: 60 }), 1440, 0)).toHaveLength(1440);
    expect(times(history({ until: null }), 5, 10_000).at(-1)).toBe(10);
  });

  it('have gaps before the node has started', () => {
    expect(column([1, 2], 4)).toEqual([null, null, 1, 2]);
    expect(column([1, 2, 3], 2)).toEqual([2, 3]);
    expect(column(undefined, 1)).toEqual([null]);
    expect(perSecond([null, 10], 5)).toEqual([null, 2]);
    expect([sum([1, null, 2]), sum(undefined), last([1, null]), last([])]).toEqual([3, 0, 1, null]);
  });

  it('rank who is refused most', () => {
    expect(shares(history())).toEqual([
      { name: 'b', allowed: 0, refused: 5, wouldDeny: 0, rate: 1 },
      { name: 'a', allowed: 3, refused: 1, wouldDeny: 0, rate: 0.25 },
      { name: 'c', allowed: 0, refused: 0, wouldDeny: 0, rate: 0 },
    ]);
  });

  it('are asked for once a step', () => {
    expect([refreshMillis(60), refreshMillis(360)]).toEqual([5_000, 60_000]);
  });
});

describe('differences', () => {
  it('keep what is common', () => {
    expect(diff('a\nb\nc', 'a\nx\nc').map(({ kind, text }) => `${kind} ${text}`)).toEqual(['same a', 'gone b', 'new x', 'same c']);
    expect(diff('', 'a').map((line) => line.kind)).toEqual(['new']);
    expect(isSame(diff('a\nb', 'a\nb'))).toBe(true);
    const [before, after] = [Array.from({ length: 60 }, (_, i) => `l${String(i)}`), Array.from({ length: 60 }, (_, i) => `l${String(i * 2)}`)];
    const lines = diff(before.join('\n'), after.join('\n'));
    expect(lines.filter((line) => line.kind !== 'new').map((line) => line.text)).toEqual(before);
    expect(lines.filter((line) => line.kind !== 'gone').map((line) => line.text)).toEqual(after);
  });

  it('of very long texts are computed without a table', () => {
    const long = 'x\n'.repeat(3_000);
    expect(diff(long, 'y')).toHaveLength(3_002);
  });
});

describe('long lists', () => {
  it('show what is in sight and a little more', () => {
    expect(visible(0, 440, 44, 10_000)).toEqual({ first: 0, last: 18 });
    expect(visible(44_000, 440, 44, 10_000)).toEqual({ first: 992, last: 1018 });
    expect(visible(1_000_000, 440, 44, 100)).toEqual({ first: 99, last: 100 });
    expect(visible(0, 440, 44, 0)).toEqual({ first: 0, last: 0 });
    const { first, last: until } = visible(1234, 2000, 44, 10_000);
    expect(until - first).toBeLessThanOrEqual(100);
  });
});

describe('exports', () => {
  it('quote what must be, and disarm formulas', () => {
    expect(['a,b', 'say "x"', '=1+1', -5, null, { a: 1 }].map(cell)).toEqual(['"a,b"', '"say ""x"""', "'=1+1", '-5', '', '"{""a"":1}"']);
    expect(csv(['a', 'b'], [{ a: 1 }, { b: 'x\ny' }])).toBe('a,b\r\n1,\r\n,"x\ny"\r\n');
  });

  it('to a shell are one word each', () => {
    expect(quoted("it's")).toBe(`'it'\\''s'`);
    expect(curl('http://h:1', { userId: 'a b' })).toBe(`curl -s http://h:1/rate-limit/allow -H 'Content-Type: application/json' -d '{"userId":"a b"}'`);
  });
});

describe('words', () => {
  it('for numbers', () => {
    expect([count(1234567), short(9_999), short(12_345), rate(0.25), rate(250)]).toEqual(['1,234,567', '9,999', '12.3K', '0.3', '250']);
    expect([percent(0), percent(0.0004), percent(0.055), percent(0.5)]).toEqual(['0 %', '<0.1 %', '5.5 %', '50 %']);
    expect([millis(null), millis(0.05), millis(1.25), millis(250), millis(1500)]).toEqual(['–', '50 µs', '1.3 ms', '250 ms', '1.5 s']);
    expect([bytes(999), bytes(1500), bytes(12_000_000)]).toEqual(['999 B', '1.5 kB', '12 MB']);
    expect([plural(1, 'rule'), plural(0, 'rule'), list(['a', 'b', 'c'], 'or'), list([])]).toEqual(['1 rule', '0 rules', 'a, b or c', '']);
  });

  it('for times', () => {
    expect([span(60, 'named'), span(60), span(5400), span(0.2), span(604_800, 'named')]).toEqual(['minute', '1 minute', '90 minutes', '200 ms', 'week']);
    expect([roughly(0), roughly(59), roughly(3_600), roughly(90_061)]).toEqual(['0 s', '59 s', '1 h', '1 d 1 h']);
    const now = Date.parse('2026-11-16T04:00:00Z');
    expect([ago('2026-11-16T03:59:58Z', now), ago('2026-11-16T03:00:00Z', now), ago('2026-11-16T04:05:00Z', now), ago('2099-11-16T04:00:00Z', now), ago('x', now)]).toEqual(['now', '1 h ago', 'in 5 min', 'in 73 y', '–']);
  });
});

describe('the session', () => {
  it('waits longer and longer, up to a bound', () => {
    expect([0, 1, 2, 3, 9].map(backOff)).toEqual([500, 1000, 2000, 4000, 10_000]);
  });

  it('hides what a role may not do', () => {
    const as = (role: Identity['role']) => may({ token_id: 't', name: 'n', role, tenant_id: null });
    expect(as('viewer')).toEqual({ isTenant: false, view: true, operate: false, rules: false, administer: false });
    expect(as('operator')).toEqual({ isTenant: false, view: true, operate: true, rules: true, administer: false });
    expect(as('admin').administer).toBe(true);
    expect(as('tenant_admin')).toEqual({ isTenant: true, view: false, operate: false, rules: true, administer: false });
  });

  it('finds rules by what people remember', () => {
    const entry = { status: 'active', tenant_id: 'acme', rule: { rule_id: 'per-user', name: 'Each User', scope: 'api' } } as RuleEntry;
    expect(['USER', 'api', 'acme', ''].every((text) => matches(entry, text, 'all'))).toBe(true);
    expect(matches(entry, 'nothing', 'all') || matches(entry, '', 'inactive')).toBe(false);
  });
});
