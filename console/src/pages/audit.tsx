// Who changed what, and what was decided.
import { useInfiniteQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { get } from '../api/client';
import type { Change, Decided, Page } from '../api/types';
import { csv } from '../lib/csv';
import { plural } from '../lib/format';
import { useQuery } from '../router';
import { DiffView } from '../ui/diffview';
import { Ago } from '../ui/ago';
import { Badge, Button, Card, Dialog, Empty, Field, Load, PageHead, Segmented, sentence } from '../ui/parts';
import { type Column, Table } from '../ui/table';
import { toast } from '../ui/toast';
import { LiveDecisions } from './live';
import { decisionColumns, DecisionFilters, DECISION_FILTERS, When } from './decisions';

const KINDS = [
  { value: 'changes', name: 'Changes' },
  { value: 'decisions', name: 'Decisions' },
] as const;
type Kind = (typeof KINDS)[number]['value'];

const CHANGE_FILTERS: [name: string, label: string, example: string][] = [
  ['entry_kind', 'Kind', 'rule'],
  ['entry_id', 'Id', 'per-user'],
  ['actor', 'Who', 'first'],
  ['request_id', 'Request id', ''],
];
const NAMES: Record<Kind, string[]> = { changes: CHANGE_FILTERS.map(([name]) => name), decisions: DECISION_FILTERS };
const COLUMNS: Record<Kind, string[]> = {
  changes: ['timestamp', 'actor', 'action', 'kind', 'entry_id', 'tenant_id', 'version', 'revision', 'request_id', 'address', 'before', 'after'],
  decisions: [
    'timestamp', 'result', 'sentence', 'reason', 'rule_id', 'rule_version', 'scope', 'client_id', 'user_id', 'tenant_id', 'api_key_id', 'ip_address', 'model_id', 'method', 'endpoint',
    'request_count', 'limit_count', 'window_seconds', 'retry_after_ms', 'would_deny', 'cost', 'request_id', 'node', 'count',
  ],
};
/** Without a kind the audit log is that of changes. */
const PATHS: Record<Kind, string> = { changes: 'audit', decisions: 'decisions' };
const PAGE = 100;
/** Lines of an export at most: a browser has to hold them. */
const MAX_EXPORTED = 10_000;
const LOOK_MS = 5_000;

const KIND_NAMES: Record<string, string> = {
  rule: 'rule', whitelist: 'allow list', blacklist: 'deny list', tier: 'plan', client_tier: 'client’s plan', grant: 'extra quota', setting: 'setting', token: 'token', key: 'virtual key', usage: 'counters',
};

export default function Audit() {
  const [query, setQuery] = useQuery();
  const kind: Kind = query.get('kind') === 'decisions' ? 'decisions' : 'changes';
  const names = NAMES[kind];
  const filters = Object.fromEntries(names.map((name) => [name, query.get(name) ?? '']));
  const isLive = kind === 'decisions' && query.get('live') === 'true';
  const [shown, setShown] = useState<Change | Decided | null>(null);
  const records = useInfiniteQuery({
    queryKey: ['audit', kind, filters],
    queryFn: ({ pageParam, signal }) => get<Page<Change | Decided>>(PATHS[kind], { ...filters, cursor: pageParam, limit: PAGE }, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next_cursor,
    // Only the newest page moves.
    enabled: !isLive,
    refetchInterval: ({ state }) => ((state.data?.pages.length ?? 1) > 1 ? false : LOOK_MS),
  });
  const rows = records.data?.pages.flatMap((page) => page.items) ?? [];
  const [exporting, setExporting] = useState(false);
  const save = async () => {
    setExporting(true);
    try {
      const lines: Record<string, unknown>[] = [];
      let cursor: string | null = null;
      do {
        const page: Page<Record<string, unknown>> = await get(PATHS[kind], { ...filters, cursor, limit: 1000 });
        lines.push(...page.items);
        cursor = page.next_cursor;
      } while (cursor !== null && lines.length < MAX_EXPORTED);
      download(`tollgate-${kind}.csv`, csv(COLUMNS[kind], lines));
      toast(`${plural(lines.length, 'line')} exported${cursor === null ? '' : '; there are more: narrow the filter'}.`);
    } catch (error) {
      toast(sentence(error), 'bad');
    } finally {
      setExporting(false);
    }
  };
  return (
    <>
      <PageHead title="Audit" about={kind === 'changes' ? 'Every change, with who made it and what was there before.' : 'Decisions: refused ones and those that would be refused, allowed ones by sampling. Repeats are one record.'}>
        <Segmented label="Which log" value={kind} options={KINDS} onChange={(value) => setQuery({ kind: value, live: null, ...Object.fromEntries(names.map((name) => [name, null])) })} />
        {kind === 'decisions' && (
          <span className="live-switch">
            <button type="button" className="switch" role="switch" aria-checked={isLive} aria-label="Live" onClick={() => setQuery({ live: isLive ? null : 'true' })}>
              <i />
            </button>
            Live
          </span>
        )}
        <Button icon="download" busy={exporting} onClick={() => void save()}>Export CSV</Button>
      </PageHead>
      <Card className="flush">
        {kind === 'decisions' ? (
          <DecisionFilters filters={filters} isLive={isLive} onChange={setQuery} />
        ) : (
          <div className="toolbar filters">
            {CHANGE_FILTERS.map(([name, label, example]) => (
              <Field key={name} label={label}>
                {(props) => <input {...props} value={filters[name] ?? ''} placeholder={example} spellCheck={false} onChange={(event) => setQuery({ [name]: event.target.value })} />}
              </Field>
            ))}
          </div>
        )}
        {isLive ? <LiveDecisions filters={filters} show={setShown} /> : <Load query={records} rows={8}>
          {() => rows.length === 0 ? (
            <Empty icon="audit" title="No records">
              <p>{Object.values(filters).some((value) => value !== '') ? 'Nothing fits these filters.' : 'Nothing happened yet that is kept here.'}</p>
            </Empty>
          ) : (
            <>
              {kind === 'changes' ? (
                <Table label="Changes" columns={changeColumns(setShown)} rows={rows as Change[]} id={(row) => String(row.id)} />
              ) : (
                <Table label="Decisions" columns={decisionColumns(setShown)} rows={rows as Decided[]} id={(row) => String(row.id)} />
              )}
              {records.hasNextPage && (
                <div className="pager">
                  <Button busy={records.isFetchingNextPage} onClick={() => void records.fetchNextPage()}>Older ones</Button>
                </div>
              )}
            </>
          )}
        </Load>}
      </Card>
      {shown && <Record record={shown} onClose={() => setShown(null)} />}
    </>
  );
}

function download(name: string, text: string) {
  const url = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}

function changeColumns(show: (row: Change) => void): Column<Change>[] {
  const tone = (action: string) => (/delete|revoke/.test(action) ? 'bad' : /create|make/.test(action) ? 'good' : 'info');
  return [
    { name: 'When', minor: true, width: '13.5rem', cell: ({ timestamp }) => <When at={timestamp} /> },
    { name: 'Who', minor: true, width: '9rem', cell: ({ actor, address }) => <span className="two-lines"><span>{actor}</span><small>{address}</small></span> },
    { name: 'Did', width: '12.5rem', cell: ({ action, timestamp }) => <span className="two-lines"><Badge tone={tone(action)}>{action}</Badge><small className="phone-only"><Ago at={timestamp} /></small></span> },
    { name: 'What', cell: (row) => <span className="two-lines"><span className="mono clip" title={row.entry_id}>{row.entry_id}</span><small>{KIND_NAMES[row.kind] ?? row.kind}{row.version === null ? '' : `, version ${String(row.version)}`}</small></span> },
    { name: 'Actions', hidden: true, align: 'right', width: '8.5rem', cell: (row) => <Button kind="quiet" icon="right" aria-label={`Details of ${row.action} ${row.entry_id}`} onClick={() => show(row)}>Details</Button> },
  ];
}

const pretty = (value: unknown) => (value === null || value === undefined ? '' : JSON.stringify(value, null, 2));

function Record({ record, onClose }: { record: Change | Decided; onClose: () => void }) {
  const isChange = 'actor' in record;
  const plain = Object.entries(record).filter(([name, value]) => name !== 'before' && name !== 'after' && value !== null);
  return (
    <Dialog title={isChange ? `${record.action} ${record.entry_id}` : `Decision ${String(record.id)}`} wide onClose={onClose}>
      <div className="stack">
        {isChange && <DiffView before={pretty(record.before)} after={pretty(record.after)} label="What changed" />}
        <dl className="headers">
          {plain.map(([name, value]) => (
            <div key={name}>
              <dt>{name.replaceAll('_', ' ')}</dt>
              <dd>{typeof value === 'object' ? JSON.stringify(value) : String(value)}</dd>
            </div>
          ))}
        </dl>
      </div>
    </Dialog>
  );
}
