// Limits with how much of each is used.
import { segment } from '../api/client';
import { useMay } from '../api/session';
import type { ClientLimit, ClientPage, Limit } from '../api/types';
import { useUnit } from '../api/units';
import { span } from '../lib/format';
import { isEditable, raiseHref } from '../lib/raise';
import { figureOf, figuresOf, KEY_RULES } from '../lib/units';
import { Link } from '../router';
import { Ago } from '../ui/ago';
import { Meter } from '../ui/parts';

type AnyLimit = Limit | ClientLimit;

/** What the counter is for beyond the client itself: its model, its tenant. */
function keyText(limit: AnyLimit, own?: string): string {
  if (!('key' in limit)) return '';
  return Object.entries(limit.key).filter(([, value]) => value !== own).map(([name, value]) => `${name.replace('_id', '')} ${value}`).join(', ');
}

/** `currency` is that of the budget of the virtual key which the limits belong to; `isKey` says that they all do. */
export function LimitList({ limits, own, requests = [], currency, isKey = false, client }: { limits: AnyLimit[]; own?: string; requests?: ClientPage['requests']; currency?: string | undefined; isKey?: boolean; client?: string }) {
  return (
    <ul className="limits">
      {limits.map((limit, index) => <OneLimit key={index} limit={limit} more={keyText(limit, own)} currency={currency} isKey={isKey} client={client} met={'request' in limit && limit.request !== null ? requests[limit.request] : undefined} />)}
    </ul>
  );
}

function OneLimit({ limit, more, currency, isKey, client, met }: { limit: AnyLimit; more: string; currency: string | undefined; isKey: boolean; client: string | undefined; met: ClientPage['requests'][number] | undefined }) {
  const isOfKey = limit.rule_id.startsWith(KEY_RULES);
  const unit = useUnit(limit.rule_id, { ...('unit' in limit ? { unit: limit.unit } : {}), ...(isOfKey && currency ? { currency } : {}) });
  const { operate } = useMay();
  return (
    <li>
      <div className="limit-head">
        <span>
          {isKey ? <KeyRule id={limit.rule_id} /> : <RuleName id={limit.rule_id} />}
          {limit.scope !== limit.rule_id && !isOfKey && <small> {limit.scope}</small>}
          {more !== '' && <small> · {more}</small>}
        </span>
        <b>{figuresOf(unit, limit.current, limit.limit)}</b>
      </div>
      <Meter used={limit.current} limit={limit.limit} label={`${limit.rule_id}${more === '' ? '' : `, ${more}`}: used`} />
      <small>
        {figureOf(unit, limit.remaining)} left{limit.window_seconds > 0 && !isKey ? ` per ${span(limit.window_seconds, 'named')}` : ''}{limit.current > 0 && <> · resets <Ago at={limit.reset_at} /></>}
        {met && [met.method, met.endpoint].some(Boolean) && <> · met by <span className="mono">{[met.method, met.endpoint].filter(Boolean).join(' ')}</span></>}
        {operate && isEditable(limit.rule_id) && <> · <Link href={raiseHref(limit.rule_id, limit.window_seconds, client)} aria-label={`Raise this limit: ${limit.rule_id}`}>Raise this limit</Link></>}
      </small>
    </li>
  );
}

/** A rule with a link to it. The built-in default and the limits of a virtual key have no page. */
export function RuleName({ id }: { id: string }) {
  if (id === 'default') return 'default';
  if (id.startsWith(KEY_RULES)) return <>Virtual key: <KeyRule id={id} /></>;
  return <Link href={`/rules/${segment(id)}`}>{id}</Link>;
}

/** What a limit of a virtual key is about: its budget, its requests. */
function KeyRule({ id }: { id: string }) {
  const name = id.slice(KEY_RULES.length).replace(/[._]/g, ' ');
  return `${name.charAt(0).toUpperCase()}${name.slice(1)}`;
}
