// Limits with how much of each is used.
import { segment } from '../api/client';
import type { ClientLimit, ClientPage, Limit } from '../api/types';
import { count, span } from '../lib/format';
import { Link } from '../router';
import { Ago } from '../ui/ago';
import { Meter } from '../ui/parts';

const UNITS: Record<ClientLimit['unit'], string> = { requests: '', tokens: ' tokens', cost: ' units', input_tokens: ' input tokens', output_tokens: ' output tokens', cached_tokens: ' cached tokens', money: ' nanos', concurrency: ' at once' };

/** What the counter is for beyond the client itself: its model, its tenant. */
function keyText(limit: Limit | ClientLimit, own?: string): string {
  if (!('key' in limit)) return '';
  return Object.entries(limit.key).filter(([, value]) => value !== own).map(([name, value]) => `${name.replace('_id', '')} ${value}`).join(', ');
}

export function LimitList({ limits, own, requests = [] }: { limits: (Limit | ClientLimit)[]; own?: string; requests?: ClientPage['requests'] }) {
  return (
    <ul className="limits">
      {limits.map((limit, index) => {
        const unit = 'unit' in limit ? UNITS[limit.unit] : '';
        const met = 'request' in limit && limit.request !== null ? requests[limit.request] : undefined;
        const more = keyText(limit, own);
        return (
          <li key={index}>
            <div className="limit-head">
              <span>
                {limit.rule_id === 'default' ? 'default' : <Link href={`/rules/${segment(limit.rule_id)}`}>{limit.rule_id}</Link>}
                {limit.scope !== limit.rule_id && <small> {limit.scope}</small>}
                {more !== '' && <small> · {more}</small>}
              </span>
              <b>{count(limit.current)} / {count(limit.limit)}{unit}</b>
            </div>
            <Meter used={limit.current} limit={limit.limit} label={`${limit.rule_id}${more === '' ? '' : `, ${more}`}: used`} />
            <small>
              {count(limit.remaining)} left{limit.window_seconds > 0 ? ` per ${span(limit.window_seconds, 'named')}` : ''} · resets <Ago at={limit.reset_at} />
              {met && [met.method, met.endpoint].some(Boolean) && <> · met by <span className="mono">{[met.method, met.endpoint].filter(Boolean).join(' ')}</span></>}
            </small>
          </li>
        );
      })}
    </ul>
  );
}
