import { diff, isSame } from '../lib/diff';

/** What came and what went, by sign and by colour. */
export function DiffView({ before, after, label }: { before: string; after: string; label: string }) {
  const lines = diff(before, after);
  if (isSame(lines)) return <p className="muted">No difference.</p>;
  const sign = { same: ' ', gone: '−', new: '+' } as const;
  return (
    // A long difference scrolls, also by keyboard.
    // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex
    <div className="diff" role="region" aria-label={label} tabIndex={0}>
      {lines.map((line, index) => (
        <div key={index} className={line.kind}>
          <span aria-hidden="true">{sign[line.kind]}</span>
          {line.kind !== 'same' && <span className="sr-only">{line.kind === 'gone' ? 'removed: ' : 'added: '}</span>}
          <code>{line.text}</code>
        </div>
      ))}
    </div>
  );
}
