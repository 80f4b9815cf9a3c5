// What a rule counts, with its unit.
import type { Rule } from '../api/types';
import { short } from './format';

const NAMES: Record<string, string> = {
  requests: 'requests', tokens: 'tokens', input_tokens: 'input tokens', output_tokens: 'output tokens', cached_tokens: 'cached tokens', cost: 'cost units', concurrency: 'slots',
};
/** Money is counted in billionths. */
const NANOS = 1_000_000_000;

export function amountOf({ unit, currency }: Pick<Rule, 'unit' | 'currency'>, value: number): [figure: string, unit: string] {
  if (unit !== 'money') return [short(value), NAMES[unit ?? 'requests'] ?? ''];
  const money = value / NANOS;
  return [money < 10_000 ? money.toFixed(2) : short(money), currency ?? ''];
}
