// What a rule counts, with its unit.
import type { Decided, Rule } from '../api/types';
import { count, short } from './format';
import { moneyFigure } from './money';

/** What the figures of a limit are. */
export type Unit = Pick<Rule, 'unit' | 'currency'>;

const NAMES: Record<string, string> = {
  requests: 'requests', tokens: 'tokens', input_tokens: 'input tokens', output_tokens: 'output tokens', cached_tokens: 'cached tokens', cost: 'cost units', concurrency: 'slots',
};
/** After two figures, where requests need no name. */
const SUFFIXES: Record<string, string> = { ...NAMES, requests: '', concurrency: 'at once' };

export function amountOf({ unit, currency }: Unit, value: number): [figure: string, unit: string] {
  if (unit !== 'money') return [short(value), NAMES[unit ?? 'requests'] ?? ''];
  return [moneyFigure(value, currency), currency ?? ''];
}

/** Below a hundredth. */
const TRACE_NANOS = 10_000_000;

/** One figure of a limit, without its unit. */
export function figureOf({ unit, currency }: Unit, value: number): string {
  return unit === 'money' ? moneyFigure(value, currency) : count(value);
}

/** How much of a limit is used: "1.25 / 5.00 USD". */
export function figuresOf(of: Unit, used: number, limit: number): string {
  const unit = of.unit === 'money' ? (of.currency ?? '') : SUFFIXES[of.unit ?? 'requests'] ?? '';
  // A few billionths of a budget are no figure to compare.
  const isTrace = of.unit === 'money' && used > 0 && used < TRACE_NANOS && limit >= TRACE_NANOS;
  return `${isTrace ? '<0.01' : figureOf(of, used)} / ${figureOf(of, limit)}${unit === '' ? '' : ` ${unit}`}`;
}

/** What the rules of a virtual key begin with; no other rule may. */
export const KEY_RULES = 'virtual_key.';

/** What a rule of a virtual key counts, by its name; null for other rules. */
export function unitOfKeyRule(ruleId: string): Unit | null {
  if (!ruleId.startsWith(KEY_RULES)) return null;
  const [unit = '', currency] = ruleId.slice(KEY_RULES.length).split('.');
  if (unit === 'budget') return { unit: 'money' };
  return { unit: unit as NonNullable<Unit['unit']>, ...(currency === undefined ? {} : { currency }) };
}

/** The sentence of a decision, with amounts of money in place of billionths. */
export function moneySentence({ sentence, request_count: used, limit_count: limit }: Pick<Decided, 'sentence' | 'request_count' | 'limit_count'>, of: Unit): string {
  if (of.unit !== 'money' || used === null || limit === null) return sentence;
  const amounts = `${figureOf(of, used)} of ${figureOf(of, limit)}${of.currency ? ` ${of.currency}` : ''}`;
  return sentence.replace(`${String(used)} of ${String(limit)}`, amounts);
}
