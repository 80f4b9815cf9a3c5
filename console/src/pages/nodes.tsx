// How this node is, its stores, and whether anything is enforced at all.
import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { call, get } from '../api/client';
import { useNodes } from '../api/nodes';
import { useMay } from '../api/session';
import type { Node } from '../api/types';
import { bytes, count, millis, perSecondText, plural, roughly, short } from '../lib/format';
import { type Agreement, agreement, type NodeBrief, nodeTitle, type Standing } from '../lib/nodes';
import { Link } from '../router';
import { Ago } from '../ui/ago';
import { Icon } from '../ui/icons';
import { Badge, Card, Confirm, Empty, Field, Load, PageHead, sentence } from '../ui/parts';
import { type Column, Table } from '../ui/table';
import { toast } from '../ui/toast';

const LEVELS = ['off', 'error', 'warn', 'info', 'debug', 'trace'];
const SOURCES: Record<string, string> = {
  database: 'the database', redis: 'Redis', kept: 'the last set on its disk', file: 'a rule file', builtin: 'the built-in default',
};

export default function Nodes() {
  const node = useAsk({ queryKey: ['node'], queryFn: ({ signal }) => get<Node>('node', {}, signal), refetchInterval: 3_000 });
  return (
    <>
      <PageHead title="Nodes" about="All nodes that share a Redis or a PostgreSQL, and the one that serves this page." />
      <Others />
      <Load query={node} rows={6}>{(data) => <One node={data} />}</Load>
    </>
  );
}

/** Every node, as it says it is. */
function Others() {
  const roll = useNodes();
  return (
    <Card className="flush" title="All nodes" about={roll.data && counted(roll.data.items)}>
      <Load query={roll} rows={2}>
        {({ node: own, items, problem }) => {
          const agreed = agreement(items);
          return (
            <>
              {problem !== null && <p className="agreed warn" role="status"><Icon name="warn" /> {problem}</p>}
              <Agreed agreed={agreed} />
              <Table label="All nodes" columns={columns(own, agreed)} rows={items} id={(one) => one.node} />
            </>
          );
        }}
      </Load>
    </Card>
  );
}

function counted(items: NodeBrief[]): string {
  const gone = items.filter(({ is_live: isLive }) => !isLive).length;
  return `${plural(items.length - gone, 'node')}${gone > 0 ? `, ${String(gone)} gone` : ''}`;
}

/** Whether all enforce the same rules, and what to do if not. */
function Agreed({ agreed: { state, text, next } }: { agreed: Agreement }) {
  const isFine = state === 'agree';
  return (
    <div className={`agreed ${isFine ? 'good' : state === 'other' ? 'bad' : 'warn'}`} role="status">
      <Icon name={isFine ? 'check' : 'warn'} />
      <p><b>{text}</b> {next}</p>
    </div>
  );
}

const STANDINGS: Record<Standing, [name: string, tone: 'warn' | 'bad'] | null> = { current: null, behind: ['behind', 'warn'], other: ['other rules', 'bad'], kept: ['stored', 'warn'] };

/** Since when a node is up, or gone. */
function Seen({ node: { is_live: isLive, is_stopped: isStopped, gone_since: gone, uptime_seconds: up } }: { node: NodeBrief }) {
  if (isLive) return <>up {roughly(up)}</>;
  return <span className={isStopped ? '' : 'bad-ink'}>{isStopped ? 'stopped' : 'disappeared'} {gone !== null && <Ago at={gone} />}</span>;
}

function Stands({ standing }: { standing: Standing | undefined }) {
  const shown = standing && STANDINGS[standing];
  return shown ? <Badge tone={shown[1]}>{shown[0]}</Badge> : null;
}

function columns(own: string, { standing }: Agreement): Column<NodeBrief>[] {
  return [
    { name: 'Node', cell: (one) => <span className="two-lines"><span><Link href={`/?node=${one.node}`} className="link">{nodeTitle(one)}</Link> {one.node === own && <Badge tone="info">this page</Badge>}</span><small><Seen node={one} /></small></span> },
    { name: 'Load', align: 'right', cell: (one) => one.is_live ? <span className="two-lines"><span>{perSecondText(one.decisions_per_second)}</span><small>{one.cpu.toFixed(2)} CPU</small></span> : '–' },
    { name: 'p50 / p99', align: 'right', cell: (one) => one.is_live ? <span className="two-lines"><span>{millis(one.p50_ms)}</span><small>{millis(one.p99_ms)}</small></span> : '–' },
    { name: 'Version', minor: true, cell: ({ version }) => version },
    { name: 'Role', minor: true, cell: ({ role }) => role },
    { name: 'Rule set', cell: ({ node, rules }) => <span className="two-lines"><span>revision {rules.revision} <Stands standing={standing.get(node)} /></span><small>from {SOURCES[rules.source] ?? rules.source}</small></span> },
    { name: 'Stores', cell: ({ stores }) => stores.length === 0 ? <span className="muted">its own memory</span> : stores.map(({ name, is_lost: isLost }) => <Badge key={name} tone={isLost ? 'bad' : 'good'}>{name}{isLost ? ' away' : ''}</Badge>) },
    { name: 'Enforcement', minor: true, cell: ({ enforcement }) => enforcement === 'on' ? 'on' : <Badge tone="warn">{enforcement}</Badge> },
  ];
}

function One({ node }: { node: Node }) {
  return (
    <>
      <div className="grid two">
        <Card title={<span className="mono">{node.node}</span>} about={<><Badge tone="good">up</Badge> {roughly(node.uptime_seconds)}</>}>
          <dl className="facts">
            <div><dt>Version</dt><dd>{node.version}</dd></div>
            <div><dt>Role</dt><dd>{node.role}</dd></div>
            <div><dt>Rule set</dt><dd>revision {node.rules.revision} · {plural(node.rules.count, 'rule')}</dd></div>
            <div><dt>Rules from</dt><dd>{SOURCES[node.rules.source] ?? node.rules.source} {node.rules.source === 'kept' && <Badge tone="warn">old</Badge>}</dd></div>
            <div><dt>Failed to load</dt><dd>{count(node.rules.load_failures)}</dd></div>
            <div><dt>Decisions</dt><dd>{short(node.decisions.allowed)} allowed, {short(node.decisions.denied)} refused, {short(node.decisions.throttled)} delayed, {short(node.decisions.queued)} queued</dd></div>
            <div><dt>Memory</dt><dd>{plural(node.memory.counters, 'counter')}, {bytes(node.memory.bytes)}{node.memory.evicted > 0 && <> · <span className="warn-ink">{count(node.memory.evicted)} evicted</span></>}</dd></div>
          </dl>
        </Card>
        <Card title="Switches" about="Enforcement is for the whole installation, the log for this node.">
          <Enforcement now={node.enforcement} />
          <LogLevel now={node.log_level} />
        </Card>
      </div>
      <Card className="flush" title="Shared stores" about="Where nodes count together">
        {node.stores.length === 0 ? (
          <Empty icon="nodes" title="This node counts alone">
            <p>In memory, kept on disk. Start nodes with <code>--redis</code> and they share their counters.</p>
          </Empty>
        ) : (
          <Table label="Stores" columns={STORES} rows={node.stores} id={(store) => store.name} />
        )}
      </Card>
    </>
  );
}

const STORES: Column<Node['stores'][number]>[] = [
  { name: 'Store', cell: ({ name }) => <b>{name}</b> },
  { name: 'State', cell: ({ is_lost: isLost }) => (isLost ? <Badge tone="bad">away: fallbacks decide</Badge> : <Badge tone="good">healthy</Badge>) },
  { name: 'Nodes alive', align: 'right', cell: ({ nodes }) => count(nodes) },
  { name: 'Servers left alone', align: 'right', cell: ({ open_breakers: open }) => (open > 0 ? <b className="bad-ink">{count(open)}</b> : '0') },
  { name: 'To be reported', align: 'right', cell: ({ waiting_reports: waiting }) => count(waiting) },
];

const MODES = [
  ['on', 'On: limits are enforced'],
  ['shadow', 'Shadow: decided and reported, nothing refused'],
  ['off', 'Off: nothing is counted'],
] as const;

function Enforcement({ now }: { now: Node['enforcement'] }) {
  const { operate } = useMay();
  const queries = useQueryClient();
  const [to, setTo] = useState<string | null>(null);
  const change = useMutation({
    mutationFn: (value: string) => call('PUT', 'settings/enforcement', { body: { value } }),
    onSuccess: () => {
      toast('Enforcement is changed.');
      setTo(null);
      void queries.invalidateQueries({ queryKey: ['node'] });
    },
  });
  return (
    <>
      <Field label="Enforcement">
        {(props) => (
          <select {...props} disabled={!operate} value={now} onChange={(event) => setTo(event.target.value)}>
            {MODES.map(([value, name]) => <option key={value} value={value}>{name}</option>)}
          </select>
        )}
      </Field>
      {to && (
        <Confirm title={`Switch enforcement to ${to}?`} verb="Switch" danger={to !== 'on'} busy={change.isPending} error={change.error} onConfirm={() => change.mutate(to)} onClose={() => setTo(null)}>
          <p>{MODES.find(([value]) => value === to)?.[1]}. On every node, at once.</p>
        </Confirm>
      )}
    </>
  );
}

function LogLevel({ now }: { now: string }) {
  const { run } = useMay();
  const queries = useQueryClient();
  const change = useMutation({
    mutationFn: (level: string) => call('PUT', 'node/log-level', { body: { level } }),
    onSuccess: () => toast('The level of the log is changed, until the process ends.'),
    onError: (error) => toast(sentence(error), 'bad'),
    onSettled: () => queries.invalidateQueries({ queryKey: ['node'] }),
  });
  return (
    <Field label="Level of the log">
      {(props) => (
        <select {...props} disabled={!run || change.isPending} value={now} onChange={(event) => change.mutate(event.target.value)}>
          {LEVELS.map((level) => <option key={level}>{level}</option>)}
        </select>
      )}
    </Field>
  );
}
