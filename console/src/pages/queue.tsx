// Requests that a gateway keeps until there is room: those that wait or are under way, dead letters, answered ones.
import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { ApiError, call, get, segment } from '../api/client';
import type { Queued, QueuePage } from '../api/types';
import { count, instant, plural, roughly } from '../lib/format';
import { useQuery } from '../router';
import { Ago } from '../ui/ago';
import { Badge, Button, Card, Confirm, Empty, Load, PageHead, Segmented, sentence } from '../ui/parts';
import { type Column, Table } from '../ui/table';
import { toast } from '../ui/toast';

const SHELVES = [
  { value: 'waiting', name: 'Waiting' },
  { value: 'dead', name: 'Dead letters' },
  { value: 'done', name: 'Answered' },
] as const;
type Shelf = (typeof SHELVES)[number]['value'];
const EMPTY: Record<Shelf, [title: string, text: string]> = {
  waiting: ['Nothing waits', 'Rules whose action is queue keep requests here until there is room.'],
  dead: ['No dead letters', 'Requests that failed too often, or waited too long, are put here.'],
  done: ['No answers are kept', 'The answer to a queued request is kept here for its client.'],
};
const STATES: Record<Queued['state'], [name: string, tone: 'info' | 'warn' | 'good' | 'bad']> = {
  queued: ['waiting', 'info'],
  sending: ['in flight', 'warn'],
  done: ['answered', 'good'],
  failed: ['dead', 'bad'],
};
const PAGE = 50;
const LOOK_MS = 3_000;

export default function Queue() {
  const [query, setQuery] = useQuery();
  const shelf = SHELVES.find((one) => one.value === query.get('state'))?.value ?? 'waiting';
  const cursor = query.get('cursor');
  const queue = useAsk({
    queryKey: ['queue', shelf, cursor],
    queryFn: ({ signal }) => get<QueuePage>('queue', { state: shelf, cursor, limit: PAGE }, signal),
    refetchInterval: LOOK_MS,
    retry: false,
  });
  const show = (value: Shelf) => setQuery({ state: value === 'waiting' ? null : value, cursor: null });
  const hasNone = queue.error instanceof ApiError && queue.error.code === 'NO_QUEUE';
  return (
    <>
      <PageHead title="Queue" about="Requests that the gateway keeps and sends when their rule has room.">
        {!hasNone && <Segmented label="Which requests" value={shelf} options={SHELVES} onChange={show} />}
      </PageHead>
      {hasNone ? (
        <Card>
          <Empty icon="queue" title="This node has no queue">
            <p><code>tollgate gateway</code> with a data directory or Redis has one.</p>
          </Empty>
        </Card>
      ) : (
        <Load query={queue} rows={6}>
          {(page) => (
            <>
              <Counts page={page} shelf={shelf} onShow={show} />
              <Card className="flush">
                {page.items.length === 0 ? <Empty icon="queue" title={EMPTY[shelf][0]}><p>{EMPTY[shelf][1]}</p></Empty> : <Requests items={page.items} shelf={shelf} />}
                {(page.next_cursor ?? cursor) && (
                  <div className="pager">
                    <Button disabled={cursor === null} onClick={() => setQuery({ cursor: null })}>First</Button>
                    <Button disabled={page.next_cursor === null} onClick={() => setQuery({ cursor: page.next_cursor })}>Next</Button>
                  </div>
                )}
              </Card>
            </>
          )}
        </Load>
      )}
    </>
  );
}

function Counts({ page, shelf, onShow }: { page: QueuePage; shelf: Shelf; onShow: (shelf: Shelf) => void }) {
  const flying = page.items.filter(({ state }) => state === 'sending').length;
  return (
    <dl className="figures">
      <div>
        <dt>Waiting or in flight</dt>
        <dd>{count(page.waiting)} <small>{shelf === 'waiting' && flying > 0 ? `${count(flying)} in flight on this page` : `for ${plural(page.keys, 'key')}`}</small></dd>
      </div>
      <div>
        <dt>Oldest waits for</dt>
        <dd>{page.oldest_seconds === null ? '–' : roughly(page.oldest_seconds)}</dd>
      </div>
      <div>
        <dt>Dead letters</dt>
        <dd className={page.dead > 0 ? 'bad-ink' : ''}>{count(page.dead)} {page.dead > 0 && shelf !== 'dead' && <button type="button" className="link" onClick={() => onShow('dead')}>Show</button>}</dd>
      </div>
      <div>
        <dt>Answered</dt>
        <dd>{count(page.done)}</dd>
      </div>
    </dl>
  );
}

function Requests({ items, shelf }: { items: Queued[]; shelf: Shelf }) {
  const queries = useQueryClient();
  const [ending, setEnding] = useState<Queued | null>(null);
  const again = () => queries.invalidateQueries({ queryKey: ['queue'] });
  const retry = useMutation({
    mutationFn: ({ ticket }: Queued) => call('POST', `queue/${segment(ticket)}/retry`),
    onSuccess: (_, { request }) => toast(`${request} waits again.`),
    onError: (error) => toast(sentence(error), 'bad'),
    onSettled: again,
  });
  const drop = useMutation({
    mutationFn: ({ ticket }: Queued) => call('DELETE', `queue/${segment(ticket)}`),
    onSuccess: (_, { request }) => {
      toast(`${request} is deleted.`);
      setEnding(null);
    },
    onSettled: again,
  });
  const columns: Column<Queued>[] = [
    { name: 'Request', cell: ({ request, ticket }) => <span className="two-lines"><span className="mono clip" title={request}>{request}</span><small className="mono" title={ticket}>{ticket.slice(0, 8)}</small></span> },
    { name: 'Key', minor: true, cell: ({ lane }) => <span className="mono clip" title={lane}>{lane}</span> },
    { name: 'State', width: '9rem', cell: ({ state, position }) => <span className="two-lines"><Badge tone={STATES[state][1]}>{STATES[state][0]}</Badge>{position !== undefined && position > 0 && <small>{plural(position, 'request')} before it</small>}</span> },
    { name: 'Queued', minor: true, width: '8rem', cell: ({ enqueued_at: at }) => <span title={instant(at)}><Ago at={at} /></span> },
    { name: 'Attempts', minor: true, width: '10rem', cell: ({ attempts, next_attempt_at: next, error }) => <span className="two-lines"><span>{count(attempts)}{next !== undefined && <small> · next <Ago at={next} /></small>}</span>{error !== undefined && <small className="bad-ink wrap" title={error}>{error}</small>}</span> },
    {
      name: 'Actions', hidden: true, pair: shelf === 'dead', align: 'right', width: shelf === 'dead' ? '13rem' : '8rem',
      cell: (one) => (
        <span className="actions end">
          {one.state === 'failed' && <Button kind="quiet" icon="reset" aria-label={`Retry ${one.request}`} disabled={retry.isPending} onClick={() => retry.mutate(one)}>Retry</Button>}
          <Button kind="quiet" icon="trash" aria-label={`Delete ${one.request}`} disabled={one.state === 'sending'} onClick={() => { drop.reset(); setEnding(one); }}>Delete</Button>
        </span>
      ),
    },
  ];
  return (
    <>
      <Table label="Queued requests" columns={columns} rows={items} id={({ ticket }) => ticket} />
      {ending && (
        <Confirm title="Delete this request?" verb="Delete" busy={drop.isPending} error={drop.error} onConfirm={() => drop.mutate(ending)} onClose={() => setEnding(null)}>
          <p><span className="mono">{ending.request}</span> {ending.state === 'done' ? 'was answered. Its client can no longer read the answer.' : 'is never sent, and its client gets no answer.'} This cannot be undone.</p>
        </Confirm>
      )}
    </>
  );
}
