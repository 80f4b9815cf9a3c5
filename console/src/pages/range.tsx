// Which time charts show, and how high they are: parameters of the address, so that a link shows the same.
import { type Range, rangeOf } from '../lib/range';
import { SCALES, type Scale, scaleOf } from '../lib/scale';
import { type Minutes, SPANS } from '../lib/windows';
import { formatTime, fromInput, toInput, zoneName } from '../lib/zone';
import { useQuery } from '../router';
import { useNow } from '../ui/ago';
import { Button, Field, Segmented } from '../ui/parts';

export interface Span {
  minutes: Minutes;
  /** Chosen by hand; null is the latest minutes. */
  range: Range | null;
  problem: string | null;
  scale: Scale;
  setMinutes: (minutes: Minutes) => void;
  setRange: (range: Range | null) => void;
  setScale: (scale: Scale) => void;
}

const text = (millis: number) => new Date(millis).toISOString();

/** `maxAgeMs` is how far back there is something to see. */
export function useSpan(usual: Minutes, maxAgeMs: number | null): Span {
  const [query, setQuery] = useQuery();
  const { range, problem } = rangeOf(query.get('from'), query.get('until'), useNow(), maxAgeMs);
  return {
    minutes: SPANS.find((one) => one.minutes === Number(query.get('minutes')))?.minutes ?? usual,
    range,
    problem,
    scale: scaleOf(query.get('scale')),
    setMinutes: (minutes) => setQuery({ minutes: String(minutes), from: null, until: null }),
    setRange: (to) => setQuery({ from: to && text(to.from), until: to && text(to.until) }),
    setScale: (scale) => setQuery({ scale: scale === 'fit' ? null : scale }),
  };
}

export function SpanControls({ span }: { span: Span }) {
  const { minutes, range, scale } = span;
  return (
    <div className="span-bar" role="group" aria-label="Time range">
      <Exact />
      <Segmented label="Scale" value={scale} options={SCALES} onChange={span.setScale} />
      <Segmented label="How far back" value={range ? 0 : minutes} options={SPANS.map(({ minutes: value, name }) => ({ value, name }))} onChange={(value) => span.setMinutes(value as Minutes)} />
    </div>
  );
}

/** Which range is shown if it is not the latest, and the way back. */
export function SpanNote({ span: { minutes, range, problem, setRange } }: { span: Span }) {
  const name = SPANS.find((one) => one.minutes === minutes)?.name ?? '';
  if (!range && !problem) return null;
  return (
    <div className={`banner zoomed ${problem ? 'warn' : ''}`} role="status">
      <p>{range ? <>Showing <b>{spanText(range)}</b>.</> : <>{problem} The last {name} are shown instead.</>}</p>
      <Button icon="reset" onClick={() => setRange(null)}>Back to the last {name}</Button>
    </div>
  );
}

/** "2026-11-17 20:01:05 – 20:06:05 UTC" */
function spanText({ from, until }: Range): string {
  const isOneDay = formatTime(from, 'day') === formatTime(until, 'day');
  return `${formatTime(from, 'instant')} – ${formatTime(until, isOneDay ? 'clock' : 'instant')} ${zoneName()}`;
}

/** A range by its instants, for those who drag nothing. */
function Exact() {
  const [query, setQuery] = useQuery();
  return (
    <details className="exact">
      <summary>Exact range</summary>
      <div className="fields">
        <Field label={`From (${zoneName()})`}>{(props) => <input {...props} type="datetime-local" step="1" value={toInput(query.get('from') ?? '')} onChange={(event) => setQuery({ from: fromInput(event.target.value) })} />}</Field>
        <Field label={`Until (${zoneName()})`}>{(props) => <input {...props} type="datetime-local" step="1" value={toInput(query.get('until') ?? '')} onChange={(event) => setQuery({ until: fromInput(event.target.value) })} />}</Field>
      </div>
    </details>
  );
}
