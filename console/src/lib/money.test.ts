import { describe, expect, it } from 'vitest';
import { decimalMoney, money, moneyFigure, nanosOf } from './money';
import { amountOf, figuresOf, moneySentence, unitOfKeyRule } from './units';

describe('an amount of money', () => {
  it('has its currency, and as many decimals as that has', () => {
    expect(money(5_000_000_000, 'USD')).toBe('5.00 USD');
    expect(money(5_000_000_000, 'JPY')).toBe('5 JPY');
    expect(money(1_234_567_500_000_000, 'EUR')).toBe('1,234,567.50 EUR');
    expect(money(0, 'USD')).toBe('0.00 USD');
    expect(money(1_500_000_000)).toBe('1.50');
    expect(money(1_500_000_000, 'no code')).toBe('1.50 no code');
  });

  it('shows small amounts, and nothing as used up that is not', () => {
    expect(money(123_456, 'USD')).toBe('0.0001234 USD');
    expect(money(1, 'USD')).toBe('0.000000001 USD');
    expect(money(4_999_999_999, 'USD')).toBe('4.9999 USD');
    expect(money(250_000_000, 'USD')).toBe('0.25 USD');
    expect(moneyFigure(9_007_199_254_740_991, 'USD')).toBe('9,007,199.25');
  });

  it('is read from a decimal, exactly', () => {
    expect([nanosOf('5.00'), nanosOf('0.000000001'), nanosOf(' 12 '), nanosOf(3)]).toEqual([5_000_000_000, 1, 12_000_000_000, 3_000_000_000]);
    expect([nanosOf(''), nanosOf('-1'), nanosOf('1.'), nanosOf('1e3'), nanosOf('0.0000000001'), nanosOf('99999999999')]).toEqual([null, null, null, null, null, null]);
    expect([decimalMoney('5', 'USD'), decimalMoney('five', 'USD')]).toEqual(['5.00 USD', 'five USD']);
  });
});

describe('the figures of a limit', () => {
  it('have their unit, and money its currency', () => {
    expect(figuresOf({ unit: 'money', currency: 'USD' }, 1_250_000_000, 5_000_000_000)).toBe('1.25 / 5.00 USD');
    expect(figuresOf({ unit: 'money', currency: 'USD' }, 1_250, 5_000_000_000)).toBe('<0.01 / 5.00 USD');
    expect(figuresOf({ unit: 'tokens' }, 1_250, 100_000)).toBe('1,250 / 100,000 tokens');
    expect(figuresOf({}, 1, 2)).toBe('1 / 2');
    expect(amountOf({ unit: 'money', currency: 'USD' }, 12_345_678_000_000_000)).toEqual(['12,345,678.00', 'USD']);
  });

  it('of a virtual key say by the name of the rule what they count', () => {
    expect(unitOfKeyRule('virtual_key.budget')).toEqual({ unit: 'money' });
    expect(unitOfKeyRule('virtual_key.money.EUR')).toEqual({ unit: 'money', currency: 'EUR' });
    expect(unitOfKeyRule('virtual_key.tokens')).toEqual({ unit: 'tokens' });
    expect(unitOfKeyRule('per-user')).toBeNull();
  });

  it('are amounts in the sentence of a decision about money', () => {
    const row = { sentence: 'ann was refused by team: 4900000000 of 5000000000 used in 86400 s', request_count: 4_900_000_000, limit_count: 5_000_000_000 };
    expect(moneySentence(row, { unit: 'money', currency: 'USD' })).toBe('ann was refused by team: 4.90 of 5.00 USD used in 86400 s');
    expect(moneySentence(row, { unit: 'tokens' })).toBe(row.sentence);
    expect(moneySentence({ ...row, limit_count: null }, { unit: 'money' })).toBe(row.sentence);
  });
});
