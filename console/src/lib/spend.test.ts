import { expect, test } from 'vitest';
import { byDay, daysBetween, forecast, spentNanos, totals } from './spend';

const row = (day: string, money: string | null, currency: string | null = 'USD') => ({ day, money, currency: money === null ? null : currency, requests: 2, refusals: 1, tokens: 10 });

test('currencies are not added up', () => {
  const sums = totals([row('2027-01-01', '1.5'), row('2027-01-02', '0.000000001'), row('2027-01-02', '2', 'EUR'), row('2027-01-02', null)]);
  expect([...sums.money]).toEqual([['USD', 1_500_000_001], ['EUR', 2_000_000_000]]);
  expect([sums.requests, sums.refusals, sums.tokens]).toEqual([8, 4, 40]);
  expect(spentNanos(row('', '90071992.5'))).toBe(90_071_992_500_000_000);
});

test('a day without usage is zero', () => {
  const days = daysBetween('2027-01-30', '2027-02-02');
  expect(days.map((day) => new Date(day).toISOString().slice(0, 10))).toEqual(['2027-01-30', '2027-01-31', '2027-02-01']);
  expect(byDay([row('2027-02-01', '1'), row('2027-02-01', '2'), row('2027-02-01', '5', 'EUR')], 'USD', days)).toEqual([0, 0, 3_000_000_000]);
  expect(daysBetween('2027-02-02', '2027-01-01')).toEqual([]);
});

test('a month is forecast by the share that is over', () => {
  expect(forecast(10, Date.UTC(2027, 1, 15))).toBe(20);
  expect(forecast(10, Date.UTC(2027, 1, 1, 3))).toBeNull();
});
