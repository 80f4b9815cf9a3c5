// One rule: what it means, how it is changed, what it was before.
import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { useEffect, useMemo, useState } from 'react';
import { ApiError, call, get, segment } from '../api/client';
import { useIdentity, useMay } from '../api/session';
import type { DryRun, Identity, Rule, RuleEntry } from '../api/types';
import { type LimitChange, limitChanges, limitPlace, ownRule } from '../lib/raise';
import { fresh, limitsOf, parseRule, printRule, withField } from '../lib/rule';
import { check, type Fault as RuleFault } from '../lib/ruleCheck';
import { amount, summary } from '../lib/ruleSummary';
import { guardLeaving, Link, navigate, useQuery } from '../router';
import { DiffView } from '../ui/diffview';
import { useFocused } from '../ui/focus';
import { useGuard } from '../ui/guard';
import { Icon } from '../ui/icons';
import { Badge, Button, Card, Confirm, Dialog, Fault, Field, Load, Loading, PageHead, Segmented } from '../ui/parts';
import { toast } from '../ui/toast';
import { RuleForm } from './ruleform';
import { Versions } from './versions';

/** How long nobody types before the server is asked. */
const STILL_MS = 350;

const TABS = [
  { value: 'edit', name: 'Rule' },
  { value: 'versions', name: 'Versions' },
] as const;

export default function RulePage({ id }: { id: string }) {
  const isNew = id === 'new';
  const [query, setQuery] = useQuery();
  const tab = query.get('tab') === 'versions' && !isNew ? 'versions' : 'edit';
  const entry = useAsk({
    queryKey: ['rule', id],
    queryFn: ({ signal }) => get<RuleEntry>(`rules/${segment(id)}`, {}, signal),
    enabled: !isNew,
  });
  const gone = isStatus(entry.error, 404);
  const isPast = tab === 'versions' || (gone && entry.data === undefined);
  const isTrial = entry.data?.rule.action === 'log_only';
  return (
    <>
      <nav className="crumbs" aria-label="Where you are">
        <Link href="/rules"><Icon name="left" size={14} /> Rules</Link>
      </nav>
      <PageHead title={isNew ? 'New rule' : id} about={entry.data ? <EntryWords entry={entry.data} /> : isNew ? 'Nothing is in force before you save it.' : undefined}>
        {!isNew && <Link className="button plain" href={`/audit?kind=decisions&rule_id=${encodeURIComponent(id)}&from=24h&result=${isTrial ? 'would_deny' : 'denied'}`}>{isTrial ? 'What it would refuse' : 'What it refused'}</Link>}
        {!isNew && <Segmented label="View" value={tab} options={TABS} onChange={(value) => setQuery({ tab: value === 'edit' ? null : value })} />}
      </PageHead>
      {isNew ? <NewRule /> : (
        <>
          {isPast && <Versions id={id} current={gone ? null : (entry.data ?? null)} />}
          {/* What is typed stays while one looks at versions. */}
          <div hidden={isPast}>
            <Load query={entry} rows={8}>{(data) => <Editor key={data.rule_id} entry={data} isGone={gone} />}</Load>
          </div>
        </>
      )}
    </>
  );
}

/** An empty rule, or one for a client that was refused, like the rule that did it. */
function NewRule() {
  const [query] = useQuery();
  const like = query.get('like');
  const client = (['user_id', 'tenant_id'] as const).flatMap((type) => (query.get(type) ? [{ type, id: query.get(type) ?? '' }] : []))[0];
  const model = useAsk({ queryKey: ['rule', like], queryFn: ({ signal }) => get<RuleEntry>(`rules/${segment(like ?? '')}`, {}, signal), enabled: like !== null });
  if (!client) return <Editor key="new" entry={null} isGone={false} />;
  if (like !== null && model.isPending) return <Loading rows={8} />;
  return <Editor key="new" entry={null} isGone={false} start={ownRule(model.data?.rule ?? null, client)} />;
}

const isStatus = (error: unknown, status: number) => error instanceof ApiError && error.status === status;

function EntryWords({ entry }: { entry: RuleEntry }) {
  return (
    <>
      <Badge tone={entry.status === 'active' ? 'good' : 'neutral'}>{entry.status === 'active' ? 'On' : 'Off'}</Badge> version {entry.version}, by {entry.updated_by}
      {entry.tenant_id && <> · tenant {entry.tenant_id}</>}
    </>
  );
}

function startOf(identity: Identity): Rule {
  const rule = fresh();
  return identity.tenant_id && identity.role === 'tenant_admin' ? { ...rule, rule_id: `${identity.tenant_id}.` } : rule;
}

/** What a rule is when it is sent back: without what the server adds to a tenant's rules. */
function sendable(rule: Rule, isTenant: boolean): Rule {
  return isTenant ? withField(rule, 'scope', undefined) : rule;
}

/** What the server thinks of a rule that is not saved, asked when nobody types. */
function useDryRun(rule: Rule | null, entry: RuleEntry | null) {
  const { isTenant } = useMay();
  const [still, setStill] = useState(rule);
  useEffect(() => {
    const timer = setTimeout(() => setStill(rule), STILL_MS);
    return () => clearTimeout(timer);
  }, [rule]);
  const body = still && sendable(still, isTenant);
  return useAsk({
    queryKey: ['dry-run', entry?.version ?? 0, body],
    queryFn: ({ signal }) => {
      const path = entry ? `rules/${segment(entry.rule_id)}` : 'rules';
      // A new rule must not be one that is there; of an old one the editor hears when it is changed.
      return call<DryRun>(entry ? 'PUT' : 'POST', path, { query: { dry_run: true }, body, signal, ifVersion: entry ? undefined : 0 });
    },
    enabled: body !== null && check(body).length === 0,
    retry: false,
    staleTime: 30_000,
  });
}

function Editor({ entry, isGone, start }: { entry: RuleEntry | null; isGone: boolean; start?: Rule }) {
  const identity = useIdentity();
  const { rules: mayChange, isTenant } = useMay();
  const queries = useQueryClient();
  const [base, setBase] = useState(entry);
  const [text, setText] = useState(() => printRule(entry ? entry.rule : start ?? startOf(identity)));
  const [view, setView] = useState<'form' | 'json'>('form');
  const [review, setReview] = useState(false);
  const [ending, setEnding] = useState(false);
  const [conflict, setConflict] = useState<RuleEntry | null>(null);
  const [taken, setTaken] = useState<string | null>(null);
  const parsed = useMemo(() => parseRule(text), [text]);
  const rule = 'rule' in parsed ? parsed.rule : null;
  const before = base ? printRule(base.rule) : '';
  const isChanged = text !== (base ? before : printRule(startOf(identity)));
  const dry = useDryRun(mayChange ? rule : null, base);
  const isTaken = !base && (!entry || isGone) && rule !== null && (rule.rule_id === taken || isStatus(dry.error, 412));
  // An empty form is not a mistake yet.
  const isUntouched = !base && !isChanged;
  const faults = useMemo(() => faultsOf(rule, dry.error, isTaken), [rule, dry.error, isTaken]);
  // Somebody else's change is taken over as long as nothing was typed here.
  if (entry && base && entry.version > base.version && !isChanged) {
    setBase(entry);
    setText(printRule(entry.rule));
  }
  const raised = useRaised(base);
  useFocused(raised ? `limit-${String(raised.place)}` : start ? 'limit-0' : null);
  const changes = base && rule ? limitChanges(base.rule, rule) : [];
  useGuard(isChanged, 'Leave without saving this rule?');
  const save = useMutation({
    mutationFn: (from: RuleEntry | null) => {
      const path = from ? `rules/${segment(from.rule_id)}` : 'rules';
      return call<RuleEntry>(from ? 'PUT' : 'POST', path, { body: sendable(rule ?? fresh(), isTenant), ifVersion: from?.version ?? 0 });
    },
    onSuccess: (saved) => {
      toast(`${saved.rule_id} is saved and in force.`);
      queries.setQueryData(['rule', saved.rule_id], saved);
      void queries.invalidateQueries({ queryKey: ['rules'] });
      void queries.invalidateQueries({ queryKey: ['versions'] });
      setReview(false);
      setConflict(null);
      setBase(saved);
      setText(printRule(saved.rule));
      guardLeaving(null);
      if (saved.rule_id !== entry?.rule_id) navigate(`/rules/${segment(saved.rule_id)}`, { replace: true });
    },
    onError: (error, from) => {
      // Of a rule that is gone the server says either.
      if (!isStatus(error, 412) && !(from && isStatus(error, 404))) return;
      if (!from) {
        setReview(false);
        setTaken(rule?.rule_id ?? null);
        // Made again by another: the page hears of it, and shows both.
        if (entry) void queries.invalidateQueries({ queryKey: ['rule', entry.rule_id] });
        return;
      }
      void get<RuleEntry>(`rules/${segment(from.rule_id)}`).then(
        (theirs) => {
          setReview(false);
          setConflict(theirs);
        },
        (failure: unknown) => {
          if (!isStatus(failure, 404)) return;
          setReview(false);
          // The page hears that it is gone, and says so.
          void queries.invalidateQueries({ queryKey: ['rule', from.rule_id] });
        },
      );
    },
  });
  if (isGone && entry && base && !isChanged) return <Versions id={entry.rule_id} current={null} />;
  const stale = !conflict && entry && (base ? entry.version > base.version : !isGone) ? entry : null;
  return (
    <>
      {isGone && entry && base && (
        <Deleted
          onDrop={() => setText(before)}
          onRemake={() => { setBase(null); setConflict(null); save.reset(); setReview(true); }}
        />
      )}
      {!isGone && (conflict ?? stale) && rule && (
        <Conflict
          theirs={(conflict ?? stale) as RuleEntry}
          mine={text}
          busy={save.isPending}
          onTake={(theirs) => { setBase(theirs); setText(printRule(theirs.rule)); setConflict(null); save.reset(); }}
          onKeep={(theirs) => { setBase(theirs); setConflict(null); save.reset(); setReview(true); }}
        />
      )}
      {start && <p className="banner"><Icon name="rules" /> <span>Change how many, then review and save. {start.scope ? `Where this rule applies, it is used in place of ${start.scope}, because it is more specific.` : ''}</span></p>}
      <div className="grid editor">
        <Card
          title={mayChange ? 'Edit' : 'Rule'}
          actions={<Segmented label="Edit as" value={view} options={[{ value: 'form', name: 'Form' }, { value: 'json', name: 'JSON' }]} onChange={setView} />}
        >
          <fieldset disabled={!mayChange} className="bare">
            {view === 'json' || !rule ? (
              <JsonView text={text} onChange={setText} problem={'problem' in parsed ? parsed.problem : undefined} />
            ) : (
              <RuleForm rule={rule} isNew={!base} faults={isUntouched ? [] : faults} onChange={(next) => setText(printRule(next))} />
            )}
          </fieldset>
        </Card>
        <aside className="stack side-panel">
          {raised && base && mayChange && <Raised entry={base} place={raised.place} client={raised.client} />}
          <Card title="In plain words">
            {rule ? <Words rule={rule} /> : <p className="muted">As soon as the JSON can be read.</p>}
          </Card>
          {changes.length > 0 && <Card title="Before and after"><Changes changes={changes} /></Card>}
          {isTaken && <Taken id={rule.rule_id} />}
          {isUntouched ? mayChange && <p className="muted">Give the rule an id. It is checked while you type.</p> : <Checks faults={faults} dry={dry.data} isAsking={dry.isFetching} isOpen={mayChange} />}
          {mayChange && (
            <div className="actions">
              <Button kind="primary" disabled={!rule || faults.length > 0 || !isChanged || dry.isFetching} onClick={() => { save.reset(); setReview(true); }}>
                Review and save
              </Button>
              {isChanged && base && <Button kind="quiet" onClick={() => setText(before)}>Undo</Button>}
              {base && <Button kind="quiet" icon="trash" onClick={() => setEnding(true)}>Delete</Button>}
            </div>
          )}
        </aside>
      </div>
      {review && rule && (
        <Dialog title={base ? `Save ${base.rule_id}?` : `Make ${rule.rule_id}?`} wide onClose={() => setReview(false)}>
          <div className="stack">
            <Words rule={rule} />
            {changes.length > 0 && <Changes changes={changes} />}
            <DiffView before={before} after={text} label="What changes" />
            <Shadows dry={dry.data} />
            {save.error && <Fault error={save.error} />}
            <div className="dialog-actions">
              <Button onClick={() => setReview(false)}>Back</Button>
              <Button kind="primary" busy={save.isPending} onClick={() => save.mutate(base)}>
                Save, in force at once
              </Button>
            </div>
          </div>
        </Dialog>
      )}
      {ending && base && <Ending entry={base} onClose={() => setEnding(false)} />}
    </>
  );
}

/** The limit that a link asked to raise, and for whom. Nothing moves when the rule is saved or typed over. */
function useRaised(base: RuleEntry | null): { place: number; client: string | null } | null {
  const [query] = useQuery();
  const window = query.get('raise');
  return window === null || !base ? null : { place: limitPlace(base.rule, window), client: query.get('for') };
}

/** What the limit is now, and whom a change of it is for. */
function Raised({ entry: { rule }, place, client }: { entry: RuleEntry; place: number; client: string | null }) {
  const limit = limitsOf(rule)[place];
  return (
    <div className="banner">
      <Icon name="edit" />
      <p>
        <b>Raise this limit: {limit ? amount(rule, limit) : rule.rule_id}.</b> A change is for everyone whom this rule counts. {client && `For ${client} alone, give extra quota or add a rule for it.`}
      </p>
    </div>
  );
}

/** Each limit that changes, as it is and as it will be. */
function Changes({ changes }: { changes: LimitChange[] }) {
  return (
    <ul className="changes" aria-label="Before and after">
      {changes.map(({ before, after }) => (
        <li key={`${before ?? ''}${after ?? ''}`}>
          <span className="was">{before ?? 'no limit'}</span> <span aria-hidden="true">→</span><span className="sr-only">becomes</span> <b>{after ?? 'no limit'}</b>
        </li>
      ))}
    </ul>
  );
}

/** Local faults, or those of the server, which knows more. */
function faultsOf(rule: Rule | null, error: unknown, isTaken: boolean): RuleFault[] {
  if (!rule) return [{ field: '', message: 'The JSON cannot be read.' }];
  const local = check(rule);
  if (local.length > 0) return local;
  if (isTaken) return [{ field: 'rule_id', message: 'There is a rule of this id.' }];
  if (!(error instanceof ApiError) || error.status === 412) return [];
  if (error.fields.length === 0) return [{ field: '', message: error.message }];
  return error.fields.map(({ field, message }) => ({ field: field ?? '', message }));
}

function Words({ rule }: { rule: Rule }) {
  const [first, ...rest] = summary(rule);
  return (
    <div className="words">
      <p className="lead">{first}</p>
      {rest.length > 0 && <ul>{rest.map((one) => <li key={one}>{one}</li>)}</ul>}
    </div>
  );
}

function JsonView({ text, onChange, problem }: { text: string; onChange: (text: string) => void; problem: string | undefined }) {
  return (
    <Field label="The rule as JSON" fault={problem} wide>
      {(props) => <textarea {...props} className="code" rows={26} spellCheck={false} value={text} onChange={(event) => onChange(event.target.value)} />}
    </Field>
  );
}

function Checks({ faults, dry, isAsking, isOpen }: { faults: RuleFault[]; dry: DryRun | undefined; isAsking: boolean; isOpen: boolean }) {
  if (!isOpen) return null;
  return (
    <div aria-live="polite">
      {faults.length > 0 ? (
        <div className="checks bad">
          <p><Icon name="warn" size={16} /> {faults.length === 1 ? 'Something is missing or wrong' : `${String(faults.length)} things are missing or wrong`}</p>
          <ul>
            {faults.map(({ field, message }) => (
              <li key={`${field}${message}`}>{field !== '' && <code>{field}</code>} {message}</li>
            ))}
          </ul>
        </div>
      ) : (
        <div className="checks good">
          <p><Icon name="check" size={16} /> {isAsking ? 'Asking the server…' : dry ? 'The server would take it' : 'Looks right'}</p>
          {!isAsking && <Shadows dry={dry} />}
        </div>
      )}
    </div>
  );
}

const SHADOWS: Record<string, string> = {
  displaces: 'Wins over',
  displaced_by: 'Loses to',
  replaces: 'Replaces',
  replaced_by: 'Is replaced by',
};

/** How it stands to other rules. */
function Shadows({ dry }: { dry: DryRun | undefined }) {
  const said = Object.entries(dry?.shadows ?? {}).filter(([, rules]) => rules.length > 0);
  if (said.length === 0) return null;
  return (
    <dl className="shadows">
      {said.map(([kind, rules]) => (
        <div key={kind}>
          <dt>{SHADOWS[kind] ?? kind}</dt>
          <dd>{rules.join(', ')}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Somebody else has saved meanwhile: both are shown, and there is a way on from each. */
function Conflict({ theirs, mine, busy, onTake, onKeep }: { theirs: RuleEntry; mine: string; busy: boolean; onTake: (theirs: RuleEntry) => void; onKeep: (theirs: RuleEntry) => void }) {
  return (
    <section className="banner warn tall" role="alert" aria-label="Conflict">
      <div className="stack">
        <p>
          <Icon name="warn" /> <b>{theirs.updated_by} has changed this rule meanwhile</b> (version {theirs.version}). Nothing of yours is lost, and nothing is saved yet. From theirs to yours:
        </p>
        <DiffView before={printRule(theirs.rule)} after={mine} label="From their version to yours" />
        <div className="actions">
          <Button onClick={() => onTake(theirs)}>Take theirs</Button>
          <Button kind="primary" busy={busy} onClick={() => onKeep(theirs)}>Put mine on top</Button>
        </div>
      </div>
    </section>
  );
}

/** Somebody else has deleted it meanwhile. */
function Deleted({ onDrop, onRemake }: { onDrop: () => void; onRemake: () => void }) {
  return (
    <section className="banner warn tall" role="alert" aria-label="Conflict">
      <div className="stack">
        <p>
          <Icon name="warn" /> <b>This rule was deleted meanwhile.</b> Nothing of yours is lost, and nothing is saved yet.
        </p>
        <div className="actions">
          <Button onClick={onDrop}>Drop mine</Button>
          <Button kind="primary" onClick={onRemake}>Make it again</Button>
        </div>
      </div>
    </section>
  );
}

/** The id of a new rule is that of another. */
function Taken({ id }: { id: string }) {
  return (
    <div className="banner warn" role="alert">
      <Icon name="warn" />
      <p><b>There is a rule of this id.</b> Choose another, or change that one.</p>
      <Link href={`/rules/${segment(id)}`} className="button plain">Open it</Link>
    </div>
  );
}

function Ending({ entry, onClose }: { entry: RuleEntry; onClose: () => void }) {
  const queries = useQueryClient();
  const end = useMutation({
    mutationFn: () => call('DELETE', `rules/${segment(entry.rule_id)}`, { ifVersion: entry.version }),
    onSuccess: () => {
      toast(`${entry.rule_id} is deleted. Its versions stay.`);
      guardLeaving(null);
      navigate('/rules');
      queries.removeQueries({ queryKey: ['rule', entry.rule_id] });
      void queries.invalidateQueries({ queryKey: ['rules'] });
    },
  });
  return (
    <Confirm title={`Delete ${entry.rule_id}?`} verb="Delete" busy={end.isPending} error={end.error} onConfirm={() => end.mutate()} onClose={onClose}>
      <p>It ends at once, on every node. Its versions stay, and each can be put back.</p>
    </Confirm>
  );
}
