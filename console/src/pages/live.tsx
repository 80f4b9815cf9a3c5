// Decisions as they happen.
import { useFeed } from '../api/feed';
import type { Decided } from '../api/types';
import { count, plural } from '../lib/format';
import { Button, Empty } from '../ui/parts';
import { Table } from '../ui/table';
import { decisionColumns } from './decisions';

const STATES = { connecting: 'Connecting', live: 'Live', away: 'The server does not answer; trying again' } as const;

export function LiveDecisions({ filters, show }: { filters: Record<string, string>; show: (row: Decided) => void }) {
  const [feed, pause] = useFeed(filters);
  const { rows, waiting, isPaused, skipped, state } = feed;
  return (
    <>
      <div className="toolbar live-bar">
        <p className={`pulse ${isPaused ? 'paused' : state}`} role="status">
          <i aria-hidden="true" />
          {isPaused ? `Paused${waiting.length > 0 ? `, ${plural(waiting.length, 'new record')}` : ''}` : STATES[state]}
          {skipped > 0 && <span>{count(skipped)} skipped: they came faster than 50 a second</span>}
        </p>
        <Button onClick={() => pause(!isPaused)}>{isPaused ? 'Resume' : 'Pause'}</Button>
      </div>
      {rows.length === 0 ? (
        <Empty icon="bolt" title="Waiting for decisions">
          <p>Refusals that fit the filters appear here as they are written, within about two seconds. Repeats are one record.</p>
        </Empty>
      ) : (
        <Table label="Live decisions" columns={decisionColumns(show)} rows={rows} id={(row) => String(row.id)} />
      )}
    </>
  );
}
