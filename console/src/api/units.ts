// What the figures of a rule are, asked for where an answer does not say it.
import { useQuery as useAsk } from '@tanstack/react-query';
import { type Unit, unitOfKeyRule } from '../lib/units';
import { get, segment } from './client';
import type { RuleEntry } from './types';

/** Units seldom change: a rule is not asked for again so soon. */
const FRESH_MS = 60_000;

/** The unit and currency of a rule; what is not known is left out. Another tenant's rule stays unknown. */
export function useUnit(ruleId: string | null, known: Unit = {}): Unit {
  const ofKey = ruleId === null ? null : unitOfKeyRule(ruleId);
  const isOpen = known.unit === undefined || (known.unit === 'money' && !known.currency);
  const rule = useAsk({
    queryKey: ['rule', ruleId],
    queryFn: ({ signal }) => get<RuleEntry>(`rules/${segment(ruleId ?? '')}`, {}, signal),
    enabled: isOpen && ruleId !== null && ruleId !== 'default' && !ofKey,
    staleTime: FRESH_MS,
    retry: false,
  });
  const { unit, currency } = ofKey ?? rule.data?.rule ?? {};
  const currencyOf = known.currency ?? currency;
  return { unit: known.unit ?? unit ?? 'requests', ...(currencyOf ? { currency: currencyOf } : {}) };
}
