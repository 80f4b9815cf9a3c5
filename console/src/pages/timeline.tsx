// What happened in a span, next to its charts: incidents, and changes of rules.
import { useQuery as useAsk } from '@tanstack/react-query';
import { get } from '../api/client';
import type { Change, Incidents, Page } from '../api/types';
import { instant } from '../lib/format';
import { type Mark, marksOf } from '../lib/timeline';
import { Link } from '../router';
import { Ago } from '../ui/ago';
import { Badge, Card } from '../ui/parts';

const LOOK_MS = 5_000;
/** Lines below the strip. */
const MAX_LINES = 6;

export function useIncidents(isEnabled = true) {
  return useAsk({ queryKey: ['incidents'], queryFn: ({ signal }) => get<Incidents>('incidents', {}, signal), refetchInterval: LOOK_MS, enabled: isEnabled });
}

export function Timeline({ from, until }: { from: number; until: number }) {
  const incidents = useIncidents();
  // Asked for by whole minutes, so that the answer is not a new one every second.
  const since = new Date(Math.floor(from / 60) * 60_000).toISOString();
  const changes = useAsk({ queryKey: ['audit', 'timeline', since], queryFn: ({ signal }) => get<Page<Change>>('audit', { from: since, limit: 100 }, signal), placeholderData: (before) => before });
  const marks = marksOf(incidents.data?.items ?? [], changes.data?.items ?? [], from, until);
  return (
    <Card title="Timeline" about="Incidents and changes in this span" actions={<Link href="/audit">All changes</Link>}>
      {marks.length === 0 ? (
        <p className="muted">Nothing was changed, and nothing went wrong.</p>
      ) : (
        <>
          <div className="strip" aria-hidden="true">
            {marks.map((mark) => <Tick key={mark.id} mark={mark} />)}
          </div>
          <ul className="lines">
            {marks.slice(0, MAX_LINES).map((mark) => (
              <li key={mark.id}>
                <span><Badge tone={mark.isIncident ? (mark.isOpen ? 'bad' : 'warn') : 'info'}>{mark.isIncident ? (mark.isOpen ? 'incident' : 'over') : 'change'}</Badge> {mark.href ? <Link href={mark.href}>{mark.title}</Link> : mark.title} <small>{mark.text}</small></span>
                <small title={instant(mark.at)}>{instant(mark.at).slice(11)} · <Ago at={mark.at} /></small>
              </li>
            ))}
          </ul>
          {marks.length > MAX_LINES && <p className="muted">{marks.length - MAX_LINES} more in this span.</p>}
        </>
      )}
    </Card>
  );
}

function Tick({ mark: { left, width, isIncident, isOpen, title, at } }: { mark: Mark }) {
  return <i title={`${instant(at)} ${title}`} className={isIncident ? (isOpen ? 'incident open' : 'incident') : 'change'} style={{ left: `${left.toFixed(2)}%`, width: isIncident ? `${Math.max(width, 0.4).toFixed(2)}%` : undefined }} />;
}
