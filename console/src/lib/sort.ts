// The order of a table, as the address has it: a name, with a minus for the other direction.

export interface Order {
  by: string;
  isDescending: boolean;
}

export function orderOf(text: string | null): Order | null {
  if (text === null || text === '') return null;
  return text.startsWith('-') ? { by: text.slice(1), isDescending: true } : { by: text, isDescending: false };
}

/** What a click on a column makes of an order: figures begin with the highest, and a third click ends it. */
export function nextOrder(order: Order | null, by: string, isFigure: boolean): string | null {
  const [first, second] = isFigure ? [`-${by}`, by] : [by, `-${by}`];
  if (order?.by !== by) return first;
  return (order.isDescending ? `-${by}` : by) === first ? second : null;
}

/** Rows in order; equal ones stay as they are. */
export function sorted<T>(rows: T[], key: (row: T) => string | number, isDescending: boolean): T[] {
  const sign = isDescending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [left, right] = [key(a), key(b)];
    if (typeof left === 'number' && typeof right === 'number') return sign * (left - right);
    return sign * String(left).localeCompare(String(right), 'en', { numeric: true });
  });
}
