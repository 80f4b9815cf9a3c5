// One virtual key: what it may do, what it has used, and how it is changed.
import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { useEffect, useMemo, useState } from 'react';
import { ApiError, call, get, segment } from '../api/client';
import { useKeyClient } from '../api/keys';
import { useMay } from '../api/session';
import type { VirtualKey } from '../api/types';
import { instant } from '../lib/format';
import { budgetText, checkKey, draftOf, type KeyDraft, keySummary, limitTexts, tagsText } from '../lib/key';
import { printRule } from '../lib/rule';
import type { Fault as FieldFault } from '../lib/ruleCheck';
import { guardLeaving, Link, navigate, useQuery } from '../router';
import { Ago } from '../ui/ago';
import { DiffView } from '../ui/diffview';
import { useFocused } from '../ui/focus';
import { useGuard } from '../ui/guard';
import { Icon } from '../ui/icons';
import { Badge, Button, Card, Dialog, Empty, Fault, Load, PageHead } from '../ui/parts';
import { toast } from '../ui/toast';
import { Decisions } from './clients';
import { EnableButton, type KeyAct, KeyActs, showKey, useMayChange } from './keyActs';
import { KeyForm } from './keyform';
import { KeyStatus } from './keys';
import { LimitList } from './limits';

export default function KeyPage({ id }: { id: string }) {
  const isNew = id === 'new';
  const may = useMay();
  const [query] = useQuery();
  const entry = useAsk({
    queryKey: ['key', id],
    queryFn: ({ signal }) => get<VirtualKey>(`keys/${segment(id)}`, {}, signal),
    enabled: !isNew,
    retry: (failures, error) => !(error instanceof ApiError) && failures < 2,
  });
  const crumbs = (
    <nav className="crumbs" aria-label="Where you are">
      <Link href="/keys"><Icon name="left" size={14} /> Keys</Link>
    </nav>
  );
  if (isNew) {
    return (
      <>
        {crumbs}
        <PageHead title="New key" about="Its secret is shown once, after you make it." />
        {may.keys ? <Editor entry={null} focus="name" /> : <Empty icon="keys" title="This is not for your role"><p>Operators and admins make keys.</p></Empty>}
      </>
    );
  }
  if (!entry.data && entry.error instanceof ApiError && entry.error.status === 404) {
    return (
      <>
        {crumbs}
        <PageHead title={id} />
        <Card><Empty icon="keys" title="There is no such key"><p>It was deleted, or never was. The audit log has its changes.</p><Link href={`/audit?entry_id=${encodeURIComponent(id)}`} className="button plain">Its changes</Link></Empty></Card>
      </>
    );
  }
  const part = query.get('edit');
  return (
    <>
      {crumbs}
      <Load query={entry} rows={8}>{(data) => (part === null ? <Shown entry={data} /> : <Editing entry={data} focus={part} />)}</Load>
    </>
  );
}

function Words({ draft }: { draft: KeyDraft }) {
  const [first, ...rest] = keySummary(draft);
  return (
    <div className="words">
      <p className="lead">{first}</p>
      <ul>{rest.map((one) => <li key={one}>{one}</li>)}</ul>
    </div>
  );
}

function Shown({ entry }: { entry: VirtualKey }) {
  const may = useMay();
  const mayChange = useMayChange(entry);
  const [act, setAct] = useState<KeyAct | null>(null);
  const isDisabled = entry.status === 'disabled';
  return (
    <>
      <PageHead title={entry.name} about={<><KeyStatus status={entry.status} /> <span className="mono">{entry.id}</span> · version {entry.version}, by {entry.updated_by}</>}>
        {mayChange && <Link className="button plain" href={`/keys/${segment(entry.id)}?edit=name`}><Icon name="edit" size={16} /> Edit</Link>}
        {may.keys && !isDisabled && <Button icon="reset" onClick={() => setAct('rotate')}>Rotate</Button>}
        {may.keys && isDisabled && <EnableButton entry={entry} kind="plain" />}
        {may.keys && <Button icon="trash" onClick={() => setAct('revoke')}>{isDisabled ? 'Delete' : 'Revoke'}</Button>}
      </PageHead>
      {isDisabled && <State title="This key is disabled." text={`Requests with it are refused with 401${entry.disabled_at ? `, since ${instant(entry.disabled_at)}` : ''}.`} />}
      {entry.status === 'expired' && <State title="This key has ended." text="Requests with it are refused with 401. Edit its end to use it again." />}
      {entry.previous_secret_until && <State tone="info" title="Two secrets are accepted." text={`The previous one ends ${instant(entry.previous_secret_until)}.`} />}
      <div className="grid two">
        <Used entry={entry} />
        <Facts entry={entry} />
      </div>
      {may.view && <Log id={entry.id} />}
      {act && <KeyActs what={act} entry={entry} onClose={() => setAct(null)} />}
    </>
  );
}

function State({ title, text, tone = 'warn' }: { title: string; text: string; tone?: 'warn' | 'info' }) {
  return (
    <div className={`banner ${tone}`}>
      <Icon name={tone === 'warn' ? 'warn' : 'keys'} />
      <p><b>{title}</b> {text}</p>
    </div>
  );
}

/** Its own limits, with how much of each is used. Only a key that is accepted has figures. */
function Used({ entry }: { entry: VirtualKey }) {
  const { view } = useMay();
  const mayChange = useMayChange(entry);
  const texts = [...(entry.budget ? [budgetText(entry.budget)] : []), ...limitTexts(entry)];
  const edit = mayChange && <Link href={`/keys/${segment(entry.id)}?edit=${entry.budget ? 'budget' : 'requests'}`}>Change</Link>;
  if (texts.length === 0) return <Card title="Budget and limits" actions={edit}><Empty icon="rules" title="None of its own"><p>The rules alone decide how much its holder may use.</p></Empty></Card>;
  return (
    <Card title="Budget and limits" actions={edit}>
      {view && entry.status === 'active' ? <Figures entry={entry} /> : <ul className="lines">{texts.map((text) => <li key={text}>{text}</li>)}</ul>}
    </Card>
  );
}

function Figures({ entry }: { entry: VirtualKey }) {
  const client = useKeyClient(entry.id);
  return (
    <Load query={client} rows={2}>
      {({ limits }) => {
        const own = limits.filter(({ rule_id: rule }) => rule.startsWith('virtual_key.'));
        return <LimitList limits={own} own={client.data?.identifier ?? ''} currency={entry.budget?.currency} isKey />;
      }}
    </Load>
  );
}

function Facts({ entry }: { entry: VirtualKey }) {
  const { owner, tenant_id: tenant, tags, models, expires_at: ends, created_at: made, created_by: by, managed_by: managed } = entry;
  const none = <span className="muted">none</span>;
  return (
    <Card title="About it">
      <dl className="facts">
        <div><dt>Owner</dt><dd>{owner ? <Link href={`/clients?type=user_id&id=${encodeURIComponent(owner)}`}>{owner}</Link> : none}</dd></div>
        <div><dt>Tenant</dt><dd>{tenant ? <Link href={`/clients?type=tenant_id&id=${encodeURIComponent(tenant)}`}>{tenant}</Link> : none}</dd></div>
        <div><dt>Models</dt><dd>{models ? models.map((one) => <Badge key={one}>{one}</Badge>) : 'all'}</dd></div>
        <div><dt>Tags</dt><dd>{tags && Object.keys(tags).length > 0 ? tagsText(tags).split(', ').map((one) => <Badge key={one}>{one}</Badge>) : none}</dd></div>
        <div><dt>Ends</dt><dd>{ends ? <>{instant(ends)} <small><Ago at={ends} /></small></> : 'when it is revoked'}</dd></div>
        {made && <div><dt>Made</dt><dd>{instant(made)} <small>by {by}</small></dd></div>}
        <div><dt>Managed by</dt><dd>{managed === 'tenant' ? 'admins of its tenant' : 'admins of the installation'}</dd></div>
      </dl>
    </Card>
  );
}

/** Its decisions, under the name that the log has for it. */
function Log({ id }: { id: string }) {
  const client = useKeyClient(id);
  if (!client.data) return null;
  const [last] = [...client.data.requests].sort((a, b) => Date.parse(b.last_at) - Date.parse(a.last_at));
  return <Decisions search={{ api_key_id: client.data.identifier }} about={last ? <>Last seen <Ago at={last.last_at} />{last.model_id ? ` with ${last.model_id}` : ''}</> : undefined} />;
}

function Editing({ entry, focus }: { entry: VirtualKey; focus: string }) {
  const mayChange = useMayChange(entry);
  return (
    <>
      <PageHead title={entry.name} about={<><KeyStatus status={entry.status} /> <span className="mono">{entry.id}</span> · version {entry.version}</>} />
      {mayChange ? <Editor key={entry.id} entry={entry} focus={focus} /> : <State title="You may not change this key." text="An admin of the installation set its limits. You can rotate, disable and delete it." />}
    </>
  );
}

const EMPTY: KeyDraft = { name: '' };

function Editor({ entry, focus }: { entry: VirtualKey | null; focus: string }) {
  const queries = useQueryClient();
  const [base, setBase] = useState(entry);
  const [draft, setDraft] = useState<KeyDraft>(() => (entry ? draftOf(entry) : EMPTY));
  const [tags, setTags] = useState(() => tagsText(entry?.tags));
  const [review, setReview] = useState(false);
  const [isTried, setTried] = useState(false);
  const now = useStart();
  const before = base ? printRule(draftOf(base)) : '';
  const after = printRule(draft);
  const isChanged = after !== (base ? before : printRule(EMPTY)) || tags !== tagsText(base?.tags);
  useGuard(isChanged, 'Leave without saving this key?');
  useFocused(focus);
  const save = useMutation({
    mutationFn: () => {
      const body = { ...draft, name: draft.name.trim() };
      return base ? call<VirtualKey>('PUT', `keys/${segment(base.id)}`, { body, ifVersion: base.version }) : call<VirtualKey>('POST', 'keys', { body });
    },
    onSuccess: ({ secret, ...saved }) => {
      guardLeaving(null);
      queries.setQueryData(['key', saved.id], saved);
      for (const name of ['keys', 'key-use', 'client']) void queries.invalidateQueries({ queryKey: [name] });
      if (secret !== undefined) showKey({ ...saved, secret });
      else toast(`${saved.name} is saved and in force.`);
      navigate(`/keys/${segment(saved.id)}`, { replace: !base });
    },
    onError: (error) => {
      setReview(false);
      if (error instanceof ApiError && error.status === 412 && base) void queries.invalidateQueries({ queryKey: ['key', base.id] });
    },
  });
  const faults = useMemo(() => [...checkKey(draft, tags, now), ...serverFaults(save.error)], [draft, tags, now, save.error]);
  const shown = isTried || isChanged ? faults.filter(({ field }) => isTried || field !== 'name') : [];
  const theirs = entry && base && entry.version > base.version ? entry : null;
  const submit = () => {
    setTried(true);
    if (checkKey(draft, tags, Date.now()).length > 0) return;
    save.reset();
    if (base) setReview(true);
    else save.mutate();
  };
  const leave = () => navigate(base ? `/keys/${segment(base.id)}` : '/keys');
  return (
    <form noValidate onSubmit={(event) => { event.preventDefault(); submit(); }}>
      <div className="stack">
        {theirs && (
          <section className="banner warn tall" role="alert" aria-label="Conflict">
            <div className="stack">
              <p><Icon name="warn" /> <b>{theirs.updated_by} has changed this key meanwhile</b> (version {theirs.version}). Nothing of yours is lost, and nothing is saved yet. From theirs to yours:</p>
              <DiffView before={printRule(draftOf(theirs))} after={after} label="From their version to yours" />
              <div className="actions">
                <Button onClick={() => { setBase(theirs); setDraft(draftOf(theirs)); setTags(tagsText(theirs.tags)); save.reset(); }}>Take theirs</Button>
                <Button kind="primary" onClick={() => { setBase(theirs); save.reset(); }}>Continue with mine</Button>
              </div>
            </div>
          </section>
        )}
        <div className="grid editor">
          <Card title={base ? 'Edit' : 'The key'}>
            <KeyForm draft={draft} tags={tags} isNew={!base} faults={shown} onChange={(next, typed) => { setDraft(next); setTags(typed); if (save.error) save.reset(); }} />
          </Card>
          <aside className="stack side-panel">
            <Card title="In plain words"><Words draft={draft} /></Card>
            <div aria-live="polite">
              {shown.length > 0 && (
                <div className="checks bad">
                  <p><Icon name="warn" size={16} /> {shown.length === 1 ? 'Something is missing or wrong' : `${String(shown.length)} things are missing or wrong`}</p>
                  <ul>{shown.map(({ field, message }) => <li key={`${field}${message}`}>{field !== '' && <code>{field}</code>} {message}</li>)}</ul>
                </div>
              )}
            </div>
            {save.error && serverFaults(save.error).length === 0 && !theirs && <Fault error={save.error} />}
            <div className="actions">
              <Button type="submit" kind="primary" busy={save.isPending} disabled={base !== null && !isChanged}>{base ? 'Review and save' : 'Make the key'}</Button>
              <Button kind="quiet" onClick={leave}>Cancel</Button>
            </div>
          </aside>
        </div>
      </div>
      {review && base && (
        <Dialog title={`Save ${base.name}?`} wide onClose={() => setReview(false)}>
          <div className="stack">
            <Words draft={draft} />
            <DiffView before={before} after={after} label="What changes" />
            <div className="dialog-actions">
              <Button onClick={() => setReview(false)}>Back</Button>
              <Button kind="primary" busy={save.isPending} onClick={() => save.mutate()}>Save, in force at once</Button>
            </div>
          </div>
        </Dialog>
      )}
    </form>
  );
}

/** The time when the form was opened, to see that an end is not in the past. */
function useStart(): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 30_000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** What the server found wrong with fields. */
function serverFaults(error: unknown): FieldFault[] {
  if (!(error instanceof ApiError) || error.status !== 400) return [];
  return error.fields.map(({ field, message }) => ({ field: field ?? '', message }));
}
