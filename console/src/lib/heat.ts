// A heat map of latencies: for each step of time, how many calls took how long.

export interface Heat {
  /** From the fastest to the slowest; only rows between the first and the last with a call. */
  rows: { from: number; to: number | null; counts: number[] }[];
  most: number;
}

/** `calls` has a row for each bound, and one for what is slower than all. Rows may begin later than the axis does. */
export function heatOf(calls: readonly (readonly number[])[] | undefined, bounds: readonly number[], length: number): Heat {
  const all = (calls ?? []).map((counts, index) => ({
    from: index === 0 ? 0 : (bounds[index - 1] ?? 0),
    to: bounds[index] ?? null,
    counts: [...Array<number>(Math.max(0, length - counts.length)).fill(0), ...counts.slice(Math.max(0, counts.length - length))],
  }));
  const used = all.map(({ counts }) => counts.some((count) => count > 0));
  const [first, last] = [used.indexOf(true), used.lastIndexOf(true)];
  const rows = first < 0 ? [] : all.slice(first, last + 1);
  return { rows, most: Math.max(0, ...rows.flatMap(({ counts }) => counts)) };
}

/** Few colours are easier to distinguish than many. */
const LEVELS = 6;
/** The palest colour that is seen on its ground. */
const PALEST = 0.14;

/** How strong a cell is coloured, from 0 to 1: by the logarithm, so that one slow call is seen next to thousands. */
export function strength(count: number, most: number): number {
  if (count <= 0 || most <= 0) return 0;
  const share = most === 1 ? 1 : Math.log(count + 1) / Math.log(most + 1);
  const level = Math.max(1, Math.ceil(share * LEVELS));
  return PALEST + ((1 - PALEST) * (level - 1)) / (LEVELS - 1);
}
