// Which rows of a long list are to be there: those in sight, and a few around them.

export interface Range {
  first: number;
  last: number;
}

const AROUND = 8;

export function visible(scroll: number, height: number, rowHeight: number, rows: number): Range {
  const first = Math.max(0, Math.floor(scroll / rowHeight) - AROUND);
  const last = Math.min(rows, Math.ceil((scroll + height) / rowHeight) + AROUND);
  return { first: Math.min(first, Math.max(0, rows - 1)), last };
}
