import { describe, expect, it } from 'vitest';
import { nextOrder, orderOf, sorted } from './sort';
import { amountOf } from './units';

describe('the order of a table', () => {
  it('is read from the address', () => {
    expect([orderOf(null), orderOf(''), orderOf('rule'), orderOf('-used')]).toEqual([null, null, { by: 'rule', isDescending: false }, { by: 'used', isDescending: true }]);
  });

  it('changes its direction with the second click, and ends with the third', () => {
    const clicks = (isFigure: boolean) => {
      const first = nextOrder(null, 'a', isFigure);
      const second = nextOrder(orderOf(first), 'a', isFigure);
      return [first, second, nextOrder(orderOf(second), 'a', isFigure), nextOrder(orderOf(first), 'b', isFigure)];
    };
    expect(clicks(false)).toEqual(['a', '-a', null, 'b']);
    expect(clicks(true)).toEqual(['-a', 'a', null, '-b']);
  });

  it('takes numbers in names as numbers, and leaves equal rows as they are', () => {
    expect(sorted(['r10', 'r9', 'R1'], (row) => row, false)).toEqual(['R1', 'r9', 'r10']);
    expect(sorted([[1, 'a'], [2, 'b'], [1, 'c']], ([figure]) => figure ?? 0, true)).toEqual([[2, 'b'], [1, 'a'], [1, 'c']]);
  });
});

describe('what was used', () => {
  it('has the unit of the rule', () => {
    expect(amountOf({}, 12_345)).toEqual(['12.3K', 'requests']);
    expect(amountOf({ unit: 'tokens' }, 5)).toEqual(['5', 'tokens']);
    expect(amountOf({ unit: 'money', currency: 'USD' }, 1_250_000_000)).toEqual(['1.25', 'USD']);
  });
});
