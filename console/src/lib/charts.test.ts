import { afterEach, describe, expect, it } from 'vitest';
import type { Decided, History } from '../api/types';
import { instant } from './format';
import { HISTORY_MS, minutesFor, rangeBetween, rangeOf, stepsOf, viewOf, zoomed } from './range';
import { logSeries } from './refusalLog';
import { heightOf, linearBelow, logTicks, spikesOf } from './scale';
import { fromInput, setZone, toInput, zoneName } from './zone';

const NOW = Date.parse('2026-11-17T20:00:00Z');
const at = (seconds: number) => new Date(seconds * 1000).toISOString();

describe('a range of the address', () => {
  it('is read, or explained', () => {
    const read = (from: string | null, until: string | null) => rangeOf(from, until, NOW, HISTORY_MS);
    expect(read(null, null)).toEqual({ range: null, problem: null });
    expect(read('2026-11-17T19:00:00Z', '2026-11-17T19:10:00Z').range).toEqual({ from: NOW - 3_600_000, until: NOW - 3_000_000 });
    expect(read('2026-11-17T19:00:00Z', null).range?.until).toBe(NOW);
    expect(read('2026-11-17T19:10:00Z', '2026-11-17T19:00:00Z').problem).toBe('The range ends before it begins.');
    expect(read('2026-11-18T19:00:00Z', '2026-11-18T20:00:00Z').problem).toBe('The range is in the future.');
    expect(read('2026-11-10T00:00:00Z', '2026-11-10T01:00:00Z').problem).toContain('older than the 24 hours');
    expect(read(null, '2026-11-17T19:00:00Z').problem).toBe('The range has no beginning.');
    expect(read('<b>', 'x').problem).toBe('The range of the address cannot be read.');
  });

  it('is never too short, and grows and shrinks around an instant', () => {
    expect(rangeBetween(20_000, 10_000)).toEqual({ from: 7_500, until: 22_500 });
    expect(zoomed({ from: 0, until: 100_000 }, 20_000, 0.5)).toEqual({ from: 10_000, until: 60_000 });
    expect(zoomed({ from: 10_000, until: 60_000 }, 20_000, 2)).toEqual({ from: 0, until: 100_000 });
  });

  it('is asked for whole, as far as a node remembers', () => {
    expect([minutesFor({ from: NOW - 90_000, until: NOW }, NOW), minutesFor({ from: 0, until: NOW }, NOW)]).toEqual([3, 1440]);
  });

  it('cuts a history whose columns begin late', () => {
    const history = { node: 'n', until: at(100), step_seconds: 5, steps: 4, values: [{ name: 'a', allowed: [1, 2, 3, 4], refused: [0, 0, 9, 0], would_deny: [0, 0, 0, 0] }] } as History;
    const view = viewOf(history, 1, NOW, { from: 80_000, until: 95_000 });
    expect(view.axis).toEqual([80, 85, 90, 95]);
    expect(view.history.values[0]).toMatchObject({ allowed: [1, 2, 3], refused: [0, 0, 9] });
    expect(viewOf(history, 1, NOW, { from: 40_000, until: 60_000 }).history.values[0]?.allowed).toEqual([]);
  });

  it('has steps that stay where they are while time passes', () => {
    const first = stepsOf({ from: 1_000_000, until: 1_600_000 });
    expect([first.step, first.axis.length]).toEqual([5, 120]);
    expect(stepsOf({ from: 1_003_000, until: 1_603_000 }).axis.slice(0, 118)).toEqual(first.axis.slice(0, 118));
  });
});

describe('the height of a chart', () => {
  const calm = Array.from({ length: 40 }, (_, index) => 10 + (index % 3));

  it('is not that of a spike', () => {
    const spiky = [...calm.slice(0, -1), 5_000];
    const fit = heightOf([spiky, calm], 'fit');
    expect(fit).toEqual({ top: 24, isCut: true });
    expect(spikesOf([spiky, calm], fit)).toEqual([{ index: 39, value: 5_000 }]);
    expect(heightOf([spiky], 'full')).toEqual({ top: 5_500, isCut: false });
    expect(heightOf([spiky], 'log').isCut).toBe(false);
  });

  it('shows all of what is even, short, empty or mostly nothing', () => {
    expect(heightOf([calm], 'fit').isCut).toBe(false);
    expect(heightOf([[1, 1, 1, 900]], 'fit').isCut).toBe(false);
    expect(heightOf([[null, null]], 'fit')).toEqual({ top: 1, isCut: false });
    expect(heightOf([[...Array.from({ length: 40 }, () => 0), 7]], 'fit').isCut).toBe(false);
  });

  it('has a zero on a logarithmic axis', () => {
    expect([linearBelow([[0, null, 0.04, 30]]), linearBelow([[0]])]).toEqual([0.01, 1]);
    expect(logTicks(0.01, 30)).toEqual([0, 0.01, 0.1, 1, 10]);
    expect(logTicks(1, 30)).toEqual([0, 1, 2, 5, 10, 20]);
  });
});

describe('series of the log', () => {
  const row = (seconds: number, more: Partial<Decided>) => ({ timestamp: at(seconds), first_at: null, count: 1, kept: null, rule_id: 'r', reason: 'HIT', result: 'denied', ...more }) as Decided;

  it('count each decision once, and spread repeats over their time', () => {
    const [first, second] = logSeries([row(3, {}), row(20, { first_at: at(1), count: 45, kept: 5 }), row(12, { rule_id: null })], 'rule_id', [5, 10, 15, 20], 5, null);
    expect(first).toEqual({ name: 'r', total: 41, values: [11, 10, 10, 10] });
    expect(second).toEqual({ name: 'no rule', total: 1, values: [0, 0, 1, 0] });
  });

  it('have a gap where older records were not read, and nothing outside of the chart', () => {
    const [only] = logSeries([row(12, {}), row(3, {}), row(99, {})], 'reason', [5, 10, 15, 20], 5, 11_000);
    expect(only).toEqual({ name: 'HIT', total: 1, values: [null, null, 1, 0] });
  });
});

describe('the time zone', () => {
  afterEach(() => setZone('local'));

  it('is that of texts and of inputs', () => {
    setZone('utc');
    expect([instant('2026-11-16T04:05:06Z'), zoneName(), toInput('2026-11-16T04:05:06Z'), fromInput('2026-11-16T04:05:06')]).toEqual(['2026-11-16 04:05:06', 'UTC', '2026-11-16T04:05:06', '2026-11-16T04:05:06.000Z']);
    expect([toInput('x'), fromInput('')]).toEqual(['', null]);
    expect(localStorage.getItem('tollgate-zone')).toBe('utc');
    setZone('local');
    expect(fromInput(toInput('2026-11-16T04:05:06Z'))).toBe('2026-11-16T04:05:06.000Z');
  });
});
