// Who uses most and who is refused most, lately.
import { useQuery as useAsk } from '@tanstack/react-query';
import { get } from '../api/client';
import { ofNode } from '../api/nodes';
import type { Counted, Top } from '../api/types';
import { useUnit } from '../api/units';
import { roughly, short } from '../lib/format';
import { money } from '../lib/money';
import { fromKey, isNamed, type Subject } from '../lib/subject';
import { KEY_RULES } from '../lib/units';
import { Link } from '../router';
import { Card, Load } from '../ui/parts';
import { KeyMenu } from './acts';

const TOP_MS = 5_000;

/** Of one node, or of all. */
export function Tops({ node }: { node: string | null }) {
  const top = useAsk({ queryKey: ['top', node], queryFn: ({ signal }) => get<Top>('top', { limit: 8, ...ofNode(node) }, signal), refetchInterval: TOP_MS });
  return (
    <Load query={top} rows={3}>
      {(data) => (
        <div className="grid three">
          <Card title="Rules that refuse most" about={`Used and refused, last ${roughly(data.seconds)}`}>
            <Bars
              none="No rule was met."
              isShare
              rows={[...data.rules].sort((a, b) => b.refused - a.refused || b.would_deny - a.would_deny || b.consumed - a.consumed).slice(0, 8).map((rule) => ({
                name: rule.rule_id,
                href: rule.rule_id === 'default' || rule.rule_id.startsWith(KEY_RULES) ? null : `/rules/${encodeURIComponent(rule.rule_id)}`,
                value: rule.consumed,
                bad: rule.refused,
                watched: rule.would_deny,
              }))}
            />
          </Card>
          <Card title="Top tenants" about="By requests">
            <Counts rows={data.tenants.map((one) => ({ ...one, subject: isNamed(one.key) ? fromKey(one.key, { tenant_id: one.key }, null) : null }))} />
          </Card>
          <Card title="Most refused keys" about="Of all rules">
            <Counts
              rows={data.rules.flatMap((rule) => rule.top_refused.map((one) => ({ ...one, subject: fromKey(one.key, one.attributes, rule.rule_id) }))).sort((a, b) => b.count - a.count).slice(0, 8)}
              none="Nobody was refused."
              bad
            />
          </Card>
        </div>
      )}
    </Load>
  );
}

function Counts({ rows, none = 'Nothing was seen.', bad = false }: { rows: (Counted & { subject: Subject | null })[]; none?: string; bad?: boolean }) {
  return <Bars none={none} rows={rows.map(({ key, count: value, subject }) => ({ name: key, href: null, subject, value: bad ? 0 : value, bad: bad ? value : 0 }))} />;
}

/** What a rule counted; money with its currency. */
function Used({ rule, value }: { rule: string; value: number }) {
  const unit = useUnit(rule);
  return unit.unit === 'money' ? money(value, unit.currency) : short(value);
}

/** Bars next to each other; with `isShare` each is a whole of its own, as rules count in units of their own. */
function Bars({ rows, none, isShare = false }: { rows: { name: string; href: string | null; subject?: Subject | null; value: number; bad: number; watched?: number }[]; none: string; isShare?: boolean }) {
  const longest = Math.max(1, ...rows.map((row) => row.value + row.bad));
  if (rows.length === 0) return <p className="muted pad">{none}</p>;
  return (
    <ul className="bars">
      {rows.map((row) => ({ ...row, most: isShare ? Math.max(1, row.value + row.bad) : longest })).map(({ name, href, subject, value, bad, watched = 0, most }, index) => (
        <li key={`${name}-${String(index)}`}>
          <span className="bar-name" title={name}>{subject ? <KeyMenu subject={subject} /> : href ? <Link href={href}>{name}</Link> : name}</span>
          <span className="bar-value">
            {value > 0 || bad === 0 ? (isShare ? <Used rule={name} value={value} /> : short(value)) : ''}
            {bad > 0 && <b className="bad-ink"> {value > 0 ? '· ' : ''}{short(bad)} refused</b>}
            {watched > 0 && <span> · {short(watched)} would be refused</span>}
          </span>
          <span className="bar" aria-hidden="true">
            <i style={{ width: `${((value / most) * 100).toFixed(1)}%` }} />
            <i className="bad" style={{ width: `${((bad / most) * 100).toFixed(1)}%` }} />
          </span>
        </li>
      ))}
    </ul>
  );
}
