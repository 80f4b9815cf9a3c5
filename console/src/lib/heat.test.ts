import { describe, expect, it } from 'vitest';
import { heatOf, strength } from './heat';

describe('a heat map', () => {
  const bounds = [1, 2, 5];

  it('has the rows that any call fell into, and those between', () => {
    const heat = heatOf([[0, 0], [3, 0], [0, 0], [0, 1]], bounds, 2);
    expect(heat.rows.map(({ from, to }) => [from, to])).toEqual([[1, 2], [2, 5], [5, null]]);
    expect(heat.most).toBe(3);
    expect(heatOf([[0], [0], [0], [0]], bounds, 1).rows).toEqual([]);
    expect(heatOf(undefined, [], 3)).toEqual({ rows: [], most: 0 });
  });

  it('ends with the axis, wherever its figures begin', () => {
    expect(heatOf([[7]], bounds, 3).rows[0]?.counts).toEqual([0, 0, 7]);
    expect(heatOf([[1, 2, 3, 4]], bounds, 2).rows[0]?.counts).toEqual([3, 4]);
  });

  it('shows one slow call next to thousands', () => {
    expect(strength(0, 5000)).toBe(0);
    expect(strength(1, 5000)).toBeGreaterThan(0.1);
    expect(strength(5000, 5000)).toBe(1);
    expect(strength(70, 5000)).toBeGreaterThan(strength(1, 5000));
    expect(strength(1, 1)).toBe(1);
  });
});
