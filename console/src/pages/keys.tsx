// Virtual keys: who has one, what it may do, and how much of its budget is used.
import { useQuery as useAsk } from '@tanstack/react-query';
import { useEffect, useMemo, useState } from 'react';
import { segment } from '../api/client';
import { loadKeys, MAX_LOADED, searchKeys, useKeyUse } from '../api/keys';
import { useMay } from '../api/session';
import type { VirtualKey } from '../api/types';
import { count, instant, plural } from '../lib/format';
import { budgetShort, budgetText, KEY_STATES, limitShort, limitTexts, matchesKey, tagsText } from '../lib/key';
import { moneyFigure, nanosOf } from '../lib/money';
import { orderOf } from '../lib/sort';
import { figuresOf } from '../lib/units';
import { Link, useQuery } from '../router';
import { Ago } from '../ui/ago';
import { Icon } from '../ui/icons';
import { Badge, Button, Card, Empty, Load, Meter, PageHead, Segmented } from '../ui/parts';
import { type Column, inOrder, Table } from '../ui/table';
import { EnableButton, type KeyAct, KeyActs } from './keyActs';

/** How long nobody types before the server is asked. */
const STILL_MS = 350;

export default function Keys() {
  const may = useMay();
  const [query, setQuery] = useQuery();
  const text = query.get('find') ?? '';
  const state = KEY_STATES.find((one) => one.value === query.get('state'))?.value ?? 'all';
  const [act, setAct] = useState<{ what: KeyAct; key: VirtualKey } | null>(null);
  const keys = useAsk({ queryKey: ['keys'], queryFn: ({ signal }) => loadKeys(signal) });
  const asked = useStill(text.trim());
  const isMore = keys.data?.isMore === true;
  const further = useAsk({ queryKey: ['keys', 'find', asked], queryFn: ({ signal }) => searchKeys(asked, signal), enabled: isMore && asked !== '' });
  const found = useMemo(() => {
    const every = new Map([...(keys.data?.keys ?? []), ...(asked === '' ? [] : further.data ?? [])].map((key) => [key.id, key]));
    return [...every.values()].filter((key) => matchesKey(key, text, state));
  }, [keys.data, further.data, asked, text, state]);
  const columns = useColumns((what, key) => setAct({ what, key }));
  const order = orderOf(query.get('sort'));
  return (
    <>
      <PageHead title="Keys" about={keys.data ? headline(keys.data.keys.length, found.length, isMore) : 'API keys that Tollgate issues'}>
        {may.keys && <Link href="/keys/new" className="button primary"><Icon name="plus" size={16} /> New key</Link>}
      </PageHead>
      <Card className="flush">
        <div className="toolbar">
          <label className="search">
            <span className="sr-only">Find keys</span>
            <Icon name="search" size={16} />
            <input type="search" placeholder="Find by name, owner, tenant, tag, model or id" value={text} onChange={(event) => setQuery({ find: event.target.value })} />
          </label>
          <Segmented label="State" value={state} options={KEY_STATES} onChange={(value) => setQuery({ state: value === 'all' ? null : value })} />
        </div>
        <Load query={keys} rows={8}>
          {(data) =>
            data.keys.length === 0 ? <NoKeys mayMake={may.keys} /> : found.length === 0 ? (
              <Empty title="No key fits">
                <p>{isMore ? 'Of the keys that are not loaded, only a whole name, owner, tenant or the beginning of an id is searched.' : 'Try fewer letters, or another state.'}</p>
              </Empty>
            ) : (
              <Table label="Keys" columns={columns} rows={inOrder(found, columns, order)} id={(key) => key.id} fixed sorting={{ order, onSort: (sort) => setQuery({ sort }) }} />
            )
          }
        </Load>
      </Card>
      {act && <KeyActs what={act.what} entry={act.key} onClose={() => setAct(null)} />}
    </>
  );
}

function headline(all: number, shown: number, isMore: boolean): string {
  const total = isMore ? `More than ${count(MAX_LOADED)} keys; a search finds the others by whole names` : plural(all, 'key');
  return shown === all ? total : `${total}, ${count(shown)} shown`;
}

/** A text as it was when nobody typed for a moment. */
function useStill(text: string): string {
  const [still, setStill] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setStill(text), STILL_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return still;
}

function NoKeys({ mayMake }: { mayMake: boolean }) {
  return (
    <Empty icon="keys" title="No keys yet">
      <p>A virtual key is an API key that Tollgate issues to a team, a person or a program. It has an owner, the models it may use, limits and a budget of its own, and can be rotated and revoked while traffic flows.</p>
      <p>From the first key on, model routes of the gateway refuse callers without one.</p>
      {mayMake && <Link href="/keys/new" className="button primary"><Icon name="plus" size={16} /> Make the first key</Link>}
    </Empty>
  );
}

const TONES = { active: 'good', disabled: 'bad', expired: 'neutral' } as const;

export function KeyStatus({ status }: { status: VirtualKey['status'] }) {
  return <Badge tone={TONES[status]}>{status}</Badge>;
}

function useColumns(act: (what: KeyAct, key: VirtualKey) => void): Column<VirtualKey>[] {
  const may = useMay();
  return [
    {
      name: 'Key',
      width: '19%',
      sort: ({ name }) => name,
      cell: ({ id, name, status }) => (
        <span className="two-lines">
          <span><Link href={`/keys/${segment(id)}`}>{name}</Link>{status !== 'active' && <span className="minor"> <KeyStatus status={status} /></span>}</span>
          <small>{status !== 'active' && <span className="phone-only"><KeyStatus status={status} /> </span>}<span className="mono">{id}</span></small>
        </span>
      ),
    },
    {
      name: 'Owner',
      minor: true,
      width: '9%',
      sort: ({ owner, tenant_id: tenant }) => owner ?? tenant ?? '',
      cell: ({ owner, tenant_id: tenant }) => <span className="two-lines"><span>{owner ?? <span className="muted">–</span>}</span><small>{tenant}</small></span>,
    },
    {
      name: 'Models, tags',
      minor: true,
      width: '14%',
      cell: ({ models, tags }) => {
        const names = models?.join(', ') ?? 'all models';
        return <span className="two-lines"><span title={names} className={models ? '' : 'muted'}>{names}</span><small title={tagsText(tags)}>{tagsText(tags)}</small></span>;
      },
    },
    {
      name: 'Limits',
      minor: true,
      cell: (key) => {
        const limits = key.limits ?? [];
        return limits.length === 0 ? <span className="muted">by the rules alone</span> : <span className="two-rows" title={limitTexts(key).join('\n')}>{limits.map(limitShort).join(' · ')}</span>;
      },
    },
    { name: 'Budget', width: '14%', sort: ({ budget }) => nanosOf(budget?.amount ?? 0) ?? 0, cell: (key) => <Budget entry={key} /> },
    { name: 'Ends', minor: true, width: '6.5rem', sort: ({ expires_at: ends }) => (ends ? Date.parse(ends) : Infinity), cell: ({ expires_at: ends }) => (ends ? <span title={instant(ends)}><Ago at={ends} /></span> : <span className="muted">never</span>) },
    ...(may.keys
      ? [{ name: 'Actions', hidden: true, pair: true, align: 'right', width: '13.5rem', cell: (key) => (
          <span className="actions end">
            {key.status === 'disabled' ? <EnableButton entry={key} /> : <Button kind="quiet" icon="reset" aria-label={`Rotate ${key.name}`} onClick={() => act('rotate', key)}>Rotate</Button>}
            <Button kind="quiet" icon="trash" aria-label={`${key.status === 'disabled' ? 'Delete' : 'Revoke'} ${key.name}`} onClick={() => act('revoke', key)}>{key.status === 'disabled' ? 'Delete' : 'Revoke'}</Button>
          </span>
        ) } satisfies Column<VirtualKey>]
      : []),
  ];
}

/** A budget, and how much of it is used. */
function Budget({ entry }: { entry: VirtualKey }) {
  const use = useKeyUse(entry)?.find((limit) => limit.rule_id === 'virtual_key.budget');
  const { budget } = entry;
  if (!budget) return <span className="muted">none</span>;
  if (!use) return <span title={budgetText(budget)}>{budgetShort(budget)}</span>;
  return (
    <span className="budget" title={`${moneyFigure(use.remaining, budget.currency)} ${budget.currency} left of ${budgetText(budget)}`}>
      <span>{figuresOf({ unit: 'money', currency: budget.currency }, use.current, use.limit)}</span>
      <Meter used={use.current} limit={use.limit} label={`Budget of ${entry.name}: used`} />
    </span>
  );
}
