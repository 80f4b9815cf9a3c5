// The height of a chart: whole, fitted so that a spike does not flatten the rest, or logarithmic.

export const SCALES = [
  { value: 'fit', name: 'Fit' },
  { value: 'full', name: 'Full' },
  { value: 'log', name: 'Log' },
] as const;
export type Scale = (typeof SCALES)[number]['value'];

export function scaleOf(text: string | null): Scale {
  return SCALES.find((one) => one.value === text)?.value ?? 'fit';
}

/** Of so many values all but the highest are looked at to find what is usual. */
const USUAL_SHARE = 0.95;
/** What is so many times higher than usual is a spike. */
const SPIKE_FACTOR = 4;
/** A chart of fewer values shows all of them. */
const MIN_VALUES = 12;
/** Room above the highest line. */
const HEADROOM = 1.1;

type Columns = readonly (readonly (number | null)[])[];

export interface Height {
  top: number;
  /** Whether values above the top are cut off. */
  isCut: boolean;
}

/** The top of a chart. */
export function heightOf(columns: Columns, scale: Scale): Height {
  const highest = peaks(columns).sort((a, b) => a - b);
  const most = highest[highest.length - 1] ?? 0;
  const whole = { top: most > 0 ? most * HEADROOM : 1, isCut: false };
  if (scale !== 'fit' || highest.length < MIN_VALUES) return whole;
  const usual = highest[Math.floor((highest.length - 1) * USUAL_SHARE)] ?? 0;
  return usual > 0 && most > usual * SPIKE_FACTOR ? { top: usual * 2, isCut: true } : whole;
}

/** The highest value of each step that has one. */
function peaks(columns: Columns): number[] {
  const length = Math.max(0, ...columns.map((one) => one.length));
  const found: number[] = [];
  for (let index = 0; index < length; index += 1) {
    let most: number | null = null;
    for (const one of columns) {
      const value = one[index] ?? null;
      if (value !== null && (most === null || value > most)) most = value;
    }
    if (most !== null) found.push(most);
  }
  return found;
}

export interface Spike {
  index: number;
  value: number;
}

/** The steps that are higher than the chart. */
export function spikesOf(columns: Columns, { top, isCut }: Height): Spike[] {
  if (!isCut) return [];
  const length = Math.max(0, ...columns.map((one) => one.length));
  return Array.from({ length }, (_, index) => ({ index, value: Math.max(...columns.map((one) => one[index] ?? 0)) })).filter(({ value }) => value > top);
}

/** Below this a logarithmic axis is linear, so that it can have a zero. */
export function linearBelow(columns: Columns): number {
  let least = Infinity;
  for (const one of columns) for (const value of one) if (value !== null && value > 0 && value < least) least = value;
  return least === Infinity ? 1 : 10 ** Math.floor(Math.log10(least));
}

/** With fewer powers of ten than this an axis has steps between them. */
const MIN_POWERS = 3;

/** The ticks of a logarithmic axis from zero. */
export function logTicks(least: number, top: number): number[] {
  const powers: number[] = [];
  for (let power = least; power <= top * (1 + Number.EPSILON); power *= 10) powers.push(Number(power.toPrecision(1)));
  const between = powers.length < MIN_POWERS ? powers.flatMap((power) => [2 * power, 5 * power]).filter((value) => value <= top) : [];
  return [0, ...powers, ...between].sort((a, b) => a - b);
}
