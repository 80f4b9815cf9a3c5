// Amounts of money. The API counts them in billionths of a unit; people read them with their currency.
const NANOS = 1_000_000_000;
const MAX_DECIMALS = 9;
/** Larger amounts have no more decimals than their currency. */
const PLAIN_FROM = 1_000;
/** Digits that are shown of an amount below one. */
const SMALL_DIGITS = 4;

/** How many decimals a currency has: two of a dollar, none of a yen. */
function decimalsOf(currency: string | null | undefined): number {
  if (!currency) return 2;
  try {
    return new Intl.NumberFormat('en', { style: 'currency', currency }).resolvedOptions().maximumFractionDigits ?? 2;
  } catch {
    return 2;
  }
}

/**
 * An amount without its currency. What does not fit is cut off, never rounded up: a budget that has a little left is
 * not shown as used up.
 */
export function moneyFigure(nanos: number, currency?: string | null): string {
  const least = decimalsOf(currency);
  const value = Math.abs(nanos) / NANOS;
  const wanted = value >= PLAIN_FROM ? least : value >= 1 ? SMALL_DIGITS : value === 0 ? least : SMALL_DIGITS - 1 - Math.floor(Math.log10(value));
  const decimals = Math.min(MAX_DECIMALS, Math.max(least, wanted));
  const cut = Math.trunc(nanos / 10 ** (MAX_DECIMALS - decimals)) / 10 ** decimals;
  return new Intl.NumberFormat('en', { minimumFractionDigits: least, maximumFractionDigits: decimals }).format(cut);
}

/** An amount with its currency: 1.25 USD. */
export function money(nanos: number, currency?: string | null): string {
  return `${moneyFigure(nanos, currency)}${currency ? ` ${currency}` : ''}`;
}

/** A decimal such as 5.00 in billionths; null if it is none, is negative or has more than nine decimals. */
export function nanosOf(text: string | number): number | null {
  const [, units, decimals = ''] = /^(\d+)(?:\.(\d{1,9}))?$/.exec(String(text).trim()) ?? [];
  if (units === undefined) return null;
  const nanos = Number(`${units}${decimals.padEnd(MAX_DECIMALS, '0')}`);
  return Number.isSafeInteger(nanos) ? nanos : null;
}

/** A decimal as the API writes it, with its currency: 5.00 USD. What cannot be read is shown as it is. */
export function decimalMoney(text: string | number, currency?: string | null): string {
  const nanos = nanosOf(text);
  return nanos === null ? `${String(text)}${currency ? ` ${currency}` : ''}` : money(nanos, currency);
}
