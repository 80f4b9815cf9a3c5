// The first minutes: three steps instead of empty charts.
import type { ReactNode } from 'react';
import { useMay } from '../api/session';
import { Link } from '../router';
import { Icon } from '../ui/icons';
import { Card, Copy } from '../ui/parts';

export function Start({ isArrived }: { isArrived: boolean }) {
  const may = useMay();
  const curl = `curl ${window.location.origin}/rate-limit/allow -d '{"userId":"ann","modelId":"gpt4"}'`;
  return (
    <Card title={isArrived ? 'Two of three steps are done' : 'Start here'} about="Tollgate decides as soon as a request arrives.">
      <ol className="steps">
        <Step number={1} isDone={isArrived} title="Send a request">
          {!isArrived && (
            <div className="curl plain">
              <code>{curl}</code>
              <Copy text={curl} label="Copy curl" />
            </div>
          )}
        </Step>
        <Step number={2} isDone={isArrived} title={isArrived ? 'It arrived' : 'Watch it arrive'}>
          {!isArrived && <p className="muted" role="status">Waiting for the first decision. This page shows it within a second.</p>}
        </Step>
        <Step number={3} isDone={false} title="Make your first rule">
          <p className="muted">Until then each user has the built-in default: 100 requests per hour for each model.</p>
          {may.rules && <p><Link href="/rules/new" className={`button ${isArrived ? 'primary' : 'plain'}`}><Icon name="plus" size={16} /> New rule</Link></p>}
        </Step>
      </ol>
    </Card>
  );
}

function Step({ number, isDone, title, children }: { number: number; isDone: boolean; title: string; children: ReactNode }) {
  return (
    <li className={isDone ? 'done' : ''}>
      <span className="step-mark" aria-hidden="true">{isDone ? <Icon name="check" size={14} /> : number}</span>
      <div className="stack">
        <h3>{title}{isDone && <span className="sr-only"> (done)</span>}</h3>
        {children}
      </div>
    </li>
  );
}
