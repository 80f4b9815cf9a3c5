// The small parts that every page is made of.
import { type ButtonHTMLAttributes, type MouseEvent, type ReactNode, useEffect, useId, useRef, useState } from 'react';
import { ApiError, AwayError } from '../api/client';
import { Icon, type IconName } from './icons';

type Kind = 'plain' | 'primary' | 'danger' | 'quiet';

export function Button({
  kind = 'plain',
  icon,
  busy = false,
  children,
  className = '',
  type = 'button',
  disabled,
  ...rest
}: ButtonHTMLAttributes<HTMLButtonElement> & { kind?: Kind; icon?: IconName; busy?: boolean }) {
  return (
    <button type={type} className={`button ${kind} ${className}`} disabled={disabled === true || busy} aria-busy={busy} {...rest}>
      {busy ? <span className="spinner" aria-hidden="true" /> : icon && <Icon name={icon} size={16} />}
      {children}
    </button>
  );
}

export function Field({
  label,
  hint,
  fault,
  children,
  wide = false,
}: {
  label: string;
  hint?: ReactNode;
  fault?: string | undefined;
  wide?: boolean;
  children: (props: { id: string; 'aria-describedby': string | undefined; 'aria-invalid': boolean | undefined }) => ReactNode;
}) {
  const id = useId();
  const note = fault ?? hint;
  return (
    <div className={`field ${wide ? 'wide' : ''}`}>
      <label htmlFor={id}>{label}</label>
      {children({ id, 'aria-describedby': note ? `${id}-note` : undefined, 'aria-invalid': fault ? true : undefined })}
      {note && (
        <p id={`${id}-note`} className={fault ? 'note fault' : 'note'}>
          {note}
        </p>
      )}
    </div>
  );
}

export function Badge({ tone = 'neutral', children }: { tone?: 'neutral' | 'good' | 'bad' | 'warn' | 'info'; children: ReactNode }) {
  return <span className={`badge ${tone}`}>{children}</span>;
}

/** How much of a limit is used. */
export function Meter({ used, limit, label }: { used: number; limit: number; label: string }) {
  const share = limit <= 0 ? 1 : Math.min(1, used / limit);
  const tone = share >= 1 ? 'full' : share >= 0.8 ? 'high' : 'fine';
  return (
    <div className={`meter ${tone}`} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={limit} aria-valuenow={Math.min(used, limit)}>
      <div style={{ width: `${(share * 100).toFixed(1)}%` }} />
    </div>
  );
}

export function PageHead({ title, about, children }: { title: string; about?: ReactNode; children?: ReactNode }) {
  useEffect(() => {
    document.title = `${title} · Tollgate`;
  }, [title]);
  return (
    <header className="page-head">
      <div>
        <h1 tabIndex={-1}>{title}</h1>
        {about && <p className="about">{about}</p>}
      </div>
      {children && <div className="actions">{children}</div>}
    </header>
  );
}

export function Card({
  title,
  about,
  actions,
  children,
  className = '',
}: {
  title?: ReactNode;
  about?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
  className?: string;
}) {
  return (
    <section className={`card ${className}`}>
      {(title !== undefined || actions) && (
        <div className="card-head">
          <div>
            {title !== undefined && <h2>{title}</h2>}
            {about && <p className="about">{about}</p>}
          </div>
          {actions && <div className="actions">{actions}</div>}
        </div>
      )}
      {children}
    </section>
  );
}

export function Empty({ icon = 'search', title, children }: { icon?: IconName; title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <Icon name={icon} size={28} />
      <p className="empty-title">{title}</p>
      {children && <div className="empty-text">{children}</div>}
    </div>
  );
}

export function Loading({ rows = 4 }: { rows?: number }) {
  return (
    <div className="loading" role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, index) => (
        <div key={index} className="skeleton" />
      ))}
    </div>
  );
}

/** What went wrong, in words that help. */
export function sentence(error: unknown): string {
  if (error instanceof ApiError || error instanceof AwayError) return error.message;
  return error instanceof Error ? error.message : 'Something went wrong.';
}

export function Fault({ error, retry }: { error: unknown; retry?: () => void }) {
  return (
    <div className="fault-box" role="alert">
      <Icon name="warn" />
      <p>{sentence(error)}</p>
      {retry && (
        <Button kind="plain" icon="reset" onClick={retry}>
          Try again
        </Button>
      )}
    </div>
  );
}

/** One of three: still coming, failed, there. */
export function Load<T>({
  query,
  rows,
  children,
}: {
  query: { data: T | undefined; error: unknown; isPending: boolean; refetch: () => unknown };
  rows?: number;
  children: (data: T) => ReactNode;
}) {
  if (query.data !== undefined) return children(query.data);
  if (query.error) return <Fault error={query.error} retry={() => void query.refetch()} />;
  return <Loading {...(rows === undefined ? {} : { rows })} />;
}

export function Copy({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [done, setDone] = useState<'copied' | 'selected' | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const say = (what: 'copied' | 'selected') => {
    setDone(what);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setDone(null), 2_000);
  };
  const copy = (event: MouseEvent<HTMLButtonElement>) => {
    const code = event.currentTarget.closest('.secret, .curl, .card')?.querySelector('code');
    const select = () => {
      if (!code) return;
      getSelection()?.selectAllChildren(code);
      say('selected');
    };
    // Browsers have no clipboard for pages that came without TLS from another machine.
    const clipboard = navigator.clipboard as Clipboard | undefined;
    if (clipboard) void clipboard.writeText(text).then(() => say('copied'), select);
    else select();
  };
  return (
    <Button kind="quiet" icon={done === 'copied' ? 'check' : 'copy'} onClick={copy} aria-live="polite">
      {done === 'copied' ? 'Copied' : done === 'selected' ? 'Selected: copy it' : label}
    </Button>
  );
}

export function Segmented<T extends string | number>({
  label,
  value,
  options,
  onChange,
}: {
  label: string;
  value: T;
  options: readonly { value: T; name: string }[];
  onChange: (value: T) => void;
}) {
  return (
    <div className="segmented" role="group" aria-label={label}>
      {options.map((option) => (
        <button key={option.value} type="button" aria-pressed={option.value === value} onClick={() => onChange(option.value)}>
          {option.name}
        </button>
      ))}
    </div>
  );
}

export function Dialog({
  title,
  onClose,
  children,
  wide = false,
}: {
  title: string;
  onClose: () => void;
  children: ReactNode;
  wide?: boolean;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = ref.current;
    // The browser keeps the focus inside, and gives it back.
    const opener = document.activeElement;
    if (dialog && !dialog.open) {
      dialog.showModal();
      dialog.querySelector<HTMLElement>('[data-autofocus]')?.focus();
    }
    return () => {
      // Taken away without being closed, it leaves the focus nowhere.
      if (document.activeElement !== document.body) return;
      const back = opener instanceof HTMLElement && opener.isConnected ? opener : document.querySelector<HTMLElement>('h1');
      back?.focus({ preventScroll: true });
    };
  }, []);
  return (
    <dialog ref={ref} className={wide ? 'wide' : ''} aria-labelledby={id} onClose={onClose}>
      <div className="dialog-head">
        <h2 id={id}>{title}</h2>
        <button type="button" className="button quiet square" aria-label="Close" onClick={() => ref.current?.close()}>
          <Icon name="close" />
        </button>
      </div>
      <div className="dialog-body">{children}</div>
    </dialog>
  );
}

/** A question before something that cannot be undone. */
export function Confirm({
  title,
  children,
  verb,
  danger = true,
  busy = false,
  error,
  onConfirm,
  onClose,
}: {
  title: string;
  children: ReactNode;
  verb: string;
  danger?: boolean;
  busy?: boolean;
  error?: unknown;
  onConfirm: () => void;
  onClose: () => void;
}) {
  return (
    <Dialog title={title} onClose={onClose}>
      <div className="stack">
        {children}
        {error !== undefined && error !== null && <Fault error={error} />}
        <div className="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button kind={danger ? 'danger' : 'primary'} busy={busy} onClick={onConfirm}>
            {verb}
          </Button>
        </div>
      </div>
    </Dialog>
  );
}
