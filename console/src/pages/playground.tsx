// A request made up to see what happens: who is let in, which limits it meets, what its client would see.
import { useMutation } from '@tanstack/react-query';
import { type SyntheticEvent, useEffect, useRef, useState } from 'react';
import { call } from '../api/client';
import { useMay } from '../api/session';
import type { Attributes, Decision, Tried } from '../api/types';
import { count, millis, plural, span } from '../lib/format';
import { curl } from '../lib/curl';
import { amountOf, figureOf, figuresOf, type Unit } from '../lib/units';
import { Icon } from '../ui/icons';
import { Ago } from '../ui/ago';
import { Badge, Button, Card, Copy, Empty, Fault, Field, Meter, PageHead } from '../ui/parts';
import { RuleName } from './limits';

const FIELDS = [
  { name: 'userId', label: 'User', example: 'ann' },
  { name: 'modelId', label: 'Model', example: 'gpt4' },
  { name: 'apiKey', label: 'API key', example: 'key-1' },
  { name: 'tenantId', label: 'Tenant', example: 'acme' },
  { name: 'tier', label: 'Plan', example: 'free' },
  { name: 'ip', label: 'IP address', example: '203.0.113.9' },
] as const;
const MORE = [
  { name: 'endpoint', label: 'Endpoint', example: '/api/items' },
  { name: 'method', label: 'Method', example: 'GET' },
  { name: 'clientType', label: 'Client type', example: 'EXTERNAL' },
  { name: 'modelTier', label: 'Model tier', example: 'large' },
] as const;
type Name = (typeof FIELDS)[number]['name'] | (typeof MORE)[number]['name'];
type Typed = Partial<Record<Name | 'cost' | 'tokens', string>>;

/** So many are sent to watch a limit fill. */
const MANY = 50;
/** The outcomes that are shown of those. */
const MAX_SHOWN = 200;

function bodyOf(typed: Typed): Attributes {
  const body: Record<string, string | number> = {};
  for (const [name, value] of Object.entries(typed)) {
    const text = value.trim();
    if (text === '') continue;
    body[name] = name === 'cost' || name === 'tokens' ? Number(text) : text;
  }
  return body;
}

export default function Playground() {
  const { run: operate } = useMay();
  const [typed, setTyped] = useState<Typed>({ userId: 'ann', modelId: 'gpt4' });
  const [tried, setTried] = useState<Tried | null>(null);
  const [run, setRun] = useState<boolean[]>([]);
  const stop = useRef<AbortController>(null);
  useEffect(() => () => stop.current?.abort(), []);
  const send = (path: 'decide' | 'peek') => call<Tried>('POST', path, { body: bodyOf(typed) });
  const check = useMutation({
    mutationFn: send,
    onSuccess: (answer, path) => {
      setTried(answer);
      if (path === 'decide') setRun((before) => [...before, answer.decision.allowed].slice(-MAX_SHOWN));
    },
  });
  const many = useMutation({
    mutationFn: async () => {
      stop.current = new AbortController();
      const { signal } = stop.current;
      for (let index = 0; index < MANY && !signal.aborted; index += 1) {
        const answer = await send('decide');
        setTried(answer);
        setRun((before) => [...before, answer.decision.allowed].slice(-MAX_SHOWN));
      }
    },
  });
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    many.reset();
    check.mutate(operate ? 'decide' : 'peek');
  };
  const set = (name: keyof Typed) => (event: { target: { value: string } }) => {
    setTyped({ ...typed, [name]: event.target.value });
    setRun([]);
  };
  const busy = check.isPending || many.isPending;
  const error = check.error ?? many.error;
  const input = (name: Name, label: string, example: string) => (
    <Field key={name} label={label}>
      {(props) => <input {...props} value={typed[name] ?? ''} placeholder={example} autoComplete="off" spellCheck={false} maxLength={256} onChange={set(name)} />}
    </Field>
  );
  return (
    <>
      <PageHead title="Playground" about={operate ? 'A request as your clients send it: decided by the rules in force, and charged.' : 'A request as your clients send it. Your role looks; it charges nothing.'} />
      <div className="grid playground">
        <Card title="Request">
          <form onSubmit={submit} className="stack">
            <div className="fields">
              {FIELDS.map(({ name, label, example }) => input(name, label, example))}
              <Field label="Cost">{(props) => <input {...props} inputMode="numeric" pattern="[0-9]*" placeholder="1" value={typed.cost ?? ''} onChange={set('cost')} />}</Field>
              <Field label="Tokens">{(props) => <input {...props} inputMode="numeric" pattern="[0-9]*" placeholder="0" value={typed.tokens ?? ''} onChange={set('tokens')} />}</Field>
            </div>
            <details>
              <summary>More attributes</summary>
              <div className="fields">{MORE.map(({ name, label, example }) => input(name, label, example))}</div>
            </details>
            <div className="actions">
              <Button type="submit" kind="primary" icon="playground" busy={check.isPending} disabled={busy}>
                {operate ? 'Check' : 'Look'}
              </Button>
              {operate && (
                many.isPending ? (
                  <Button icon="close" onClick={() => stop.current?.abort()}>Stop</Button>
                ) : (
                  <Button icon="bolt" disabled={busy} onClick={() => { check.reset(); many.mutate(); }}>
                    Send {MANY}
                  </Button>
                )
              )}
              {operate && (
                <Button kind="quiet" disabled={busy} onClick={() => check.mutate('peek')}>
                  Look only
                </Button>
              )}
            </div>
          </form>
          <div className="curl">
            <div className="curl-head">
              <span>The same from a shell</span>
              <Copy text={curl(window.location.origin, bodyOf(typed))} label="Copy curl" />
            </div>
            <code>{curl(window.location.origin, bodyOf(typed))}</code>
          </div>
        </Card>
        <div className="stack" aria-live="polite">
          {error && <Fault error={error} />}
          {tried ? <Answer tried={tried} run={run} /> : !error && (
            <Card>
              <Empty icon="playground" title="Send a request">
                <p>You will see whether it passes, every limit it meets, and the headers its client would get.</p>
              </Empty>
            </Card>
          )}
        </div>
      </div>
    </>
  );
}

function Answer({ tried, run }: { tried: Tried; run: boolean[] }) {
  const { decision, headers, status } = tried;
  return (
    <>
      <section className={`verdict ${decision.allowed ? 'good' : 'bad'}`} aria-label="Decision">
        <div className="verdict-word">
          <Icon name={decision.allowed ? 'check' : 'close'} size={26} />
          {decision.allowed ? 'ALLOWED' : 'BLOCKED'}
          <Badge tone={decision.allowed ? 'good' : 'bad'}>{decision.reason}</Badge>
          {decision.degraded && <Badge tone="warn">degraded</Badge>}
        </div>
        <p>{words(decision)}</p>
        {decision.warnings.map((warning) => (
          <p key={warning} className="warn-ink">{warning}</p>
        ))}
        {run.length > 1 && (
          <div className="run">
            <span>{plural(run.filter(Boolean).length, 'allowed', 'allowed')}, {plural(run.filter((one) => !one).length, 'refused', 'refused')}</span>
            <div className="dots" aria-hidden="true">{run.map((passed, index) => <i key={index} className={passed ? 'good' : 'bad'} />)}</div>
          </div>
        )}
      </section>
      <Scopes decision={decision} />
      <Card title="What its client sees" about={`Status ${String(status)} and these headers`} actions={<Copy text={Object.entries(headers).map(([name, value]) => `${name}: ${value}`).join('\n')} />}>
        <dl className="headers">
          {Object.entries(headers).map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
        {Object.keys(headers).length === 0 && <p className="muted">No headers: no limit was met.</p>}
      </Card>
    </>
  );
}

function words(decision: Decision): string {
  if (decision.explanation) return decision.explanation;
  if (decision.waitMs > 0) return `Passes after ${millis(decision.waitMs)}.`;
  if (decision.scopes.length === 0) return 'No rule applies, so nothing was counted.';
  const decides = decision.scopes.find(({ ruleId, remaining }) => ruleId === decision.ruleId && remaining === decision.remaining);
  const [figure, unit] = decides?.money ? amountOf(unitOf(decides), decision.remaining ?? 0) : [count(decision.remaining ?? 0), ''];
  return `Rule ${decision.ruleId ?? ''} decides: ${figure} ${unit === '' ? '' : `${unit} `}remaining.`;
}

/** Money is counted in billionths, and the answer says of which currency. */
function unitOf({ money }: Decision['scopes'][number]): Unit {
  return money ? { unit: 'money', currency: money.currency } : {};
}

function Scopes({ decision }: { decision: Decision }) {
  if (decision.scopes.length === 0) return null;
  return (
    <Card title="Limits" about={plural(decision.scopes.length, 'limit was checked', 'limits were checked')}>
      <ul className="limits">
        {decision.scopes.map((scope, index) => {
          const decides = scope.ruleId === decision.ruleId && scope.remaining === decision.remaining && scope.resetAt === decision.resetAt;
          return (
            <li key={index} className={decides ? 'decides' : ''}>
              <div className="limit-head">
                <span>
                  <RuleName id={scope.ruleId} />
                  {scope.name !== scope.ruleId && <small> {scope.name}</small>}
                  {decides && <Badge tone={decision.allowed ? 'info' : 'bad'}>decides</Badge>}
                </span>
                <b>
                  {figuresOf(unitOf(scope), scope.current, scope.limit)}
                </b>
              </div>
              <Meter used={scope.current} limit={scope.limit} label={`${scope.ruleId}: used`} />
              <small>
                {figureOf(unitOf(scope), scope.remaining)} left per {span(scope.windowSeconds, 'named')} · resets <Ago at={scope.resetAt} />
              </small>
            </li>
          );
        })}
      </ul>
    </Card>
  );
}
