// The frame: who is signed in, where one can go, and whether the server is there.
import { type QueryClient, useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { type ReactNode, useEffect, useRef, useState } from 'react';
import { ApiError, get, LinkError, session, whenSignedOut } from './api/client';
import { connection, useConnection } from './api/connection';
import { may, SessionContext, useIsFromFile } from './api/session';
import type { Identity } from './api/types';
import { guardLeaving, Link, mayLeave, navigate, usePath } from './router';
import Audit from './pages/audit';
import Clients from './pages/clients';
import KeyPage from './pages/key';
import Keys from './pages/keys';
import Lists from './pages/lists';
import Nodes from './pages/nodes';
import Overview from './pages/overview';
import Playground from './pages/playground';
import RulePage from './pages/rule';
import Queue from './pages/queue';
import Rules from './pages/rules';
import Spend from './pages/spend';
import Tiers from './pages/tiers';
import { useIncidents } from './pages/timeline';
import Tokens from './pages/tokens';
import { SIGNED_OUT_OF, SignIn } from './pages/signin';
import { Ago } from './ui/ago';
import { Boundary } from './ui/boundary';
import { Icon, type IconName, Logo } from './ui/icons';
import { Button, Empty, Fault, Loading, PageHead, sentence } from './ui/parts';
import { SecretOnce } from './ui/secret';
import { ThemeSwitch } from './ui/theme';
import { Toasts } from './ui/toast';
import { useZone, ZoneSwitch } from './ui/zone';

interface Place {
  path: string;
  name: string;
  icon: IconName;
  for: (allowed: ReturnType<typeof may>) => boolean;
}

const everyone = () => true;
const PLACES: Place[] = [
  { path: '', name: 'Overview', icon: 'overview', for: everyone },
  { path: 'playground', name: 'Playground', icon: 'playground', for: ({ view }) => view },
  { path: 'rules', name: 'Rules', icon: 'rules', for: everyone },
  { path: 'clients', name: 'Clients', icon: 'clients', for: everyone },
  { path: 'keys', name: 'Keys', icon: 'keys', for: everyone },
  { path: 'spend', name: 'Spend', icon: 'spend', for: everyone },
  { path: 'lists', name: 'Lists', icon: 'lists', for: ({ view }) => view },
  { path: 'tiers', name: 'Plans', icon: 'tiers', for: ({ view }) => view },
  { path: 'queue', name: 'Queue', icon: 'queue', for: ({ operate }) => operate },
  { path: 'audit', name: 'Audit', icon: 'audit', for: everyone },
  { path: 'nodes', name: 'Nodes', icon: 'nodes', for: ({ view }) => view },
  { path: 'tokens', name: 'Tokens', icon: 'tokens', for: ({ administer }) => administer },
];

/** Ends the session and drops all cached data, so that the next user who signs in sees none of it. */
function forget(queries: QueryClient) {
  queries.setQueryData(['session'], null);
  queries.removeQueries({ predicate: ({ queryKey }) => queryKey[0] !== 'session' });
}

const isRefusal = (error: unknown) => error instanceof ApiError && error.status < 500;

export function App() {
  return (
    <>
      <Door />
      <SecretOnce />
    </>
  );
}

function Door() {
  const queries = useQueryClient();
  const who = useAsk({ queryKey: ['session'], queryFn: () => session.begin(), staleTime: Infinity, retry: (failures, error) => !isRefusal(error) && !(error instanceof LinkError) && failures < 2 });
  useEffect(() => {
    whenSignedOut(() => forget(queries));
  }, [queries]);
  if (who.isPending) return <Splash />;
  // A client that sent wrong tokens has to wait; the sign-in form shows that.
  if (who.error instanceof ApiError && who.error.status === 429) return <SignIn note={who.error.message} />;
  if (who.error instanceof LinkError) return <SignIn note={who.error.message} />;
  if (who.error) {
    return (
      <main className="alone">
        <Fault error={who.error} retry={() => void who.refetch()} />
      </main>
    );
  }
  if (!who.data) return <SignIn />;
  return (
    <SessionContext value={who.data}>
      <Frame identity={who.data} />
    </SessionContext>
  );
}

function Splash() {
  return (
    <main className="alone" aria-busy="true">
      <Logo size={44} />
      <Loading rows={1} />
    </main>
  );
}

function Frame({ identity }: { identity: Identity }) {
  const queries = useQueryClient();
  const path = usePath();
  const [open, setOpen] = useState(false);
  const main = useRef<HTMLElement>(null);
  const allowed = may(identity);
  // Every time on the page is shown again in a zone that was chosen.
  useZone();
  const here = path.join('/');
  useEffect(() => {
    // Tenants' admins may not listen to what all do; they ask who they are instead.
    connection.start(allowed.view ? null : () => get('whoami'));
    return () => connection.stop();
  }, [allowed.view]);
  // A change by anybody, anywhere: what is shown is asked for again.
  useEffect(() => connection.whenChanged(() => void queries.invalidateQueries({ predicate: ({ queryKey }) => queryKey[0] !== 'session' })), [queries]);
  useEffect(() => {
    const close = () => setOpen(false);
    close();
    main.current?.querySelector<HTMLElement>('h1')?.focus({ preventScroll: true });
  }, [here]);
  const out = useMutation({
    mutationFn: () => session.signOut(),
    onSuccess: (providerOut) => {
      guardLeaving(null);
      forget(queries);
      queries.setQueryData(SIGNED_OUT_OF, providerOut);
      navigate('/');
    },
  });
  const signOut = () => {
    if (mayLeave()) out.mutate();
  };
  return (
    <div className="frame">
      <a className="skip" href="#main">
        Skip to the page
      </a>
      <header className="topbar">
        <button type="button" className="button quiet square" aria-label="Menu" aria-expanded={open} aria-controls="side" onClick={() => setOpen(!open)}>
          <Icon name={open ? 'close' : 'menu'} />
        </button>
        <Link href="/" className="brand">
          <Logo size={24} /> Tollgate
        </Link>
      </header>
      <div id="side" className={`side ${open ? 'open' : ''}`}>
        <Link href="/" className="brand wide-only">
          <Logo /> Tollgate
        </Link>
        <nav aria-label="Pages">
          {PLACES.filter((place) => place.for(allowed)).map(({ path: to, name, icon }) => (
            <Link key={to} href={`/${to}`} aria-current={(path[0] ?? '') === to ? 'page' : undefined}>
              <Icon name={icon} /> {name}
            </Link>
          ))}
        </nav>
        <div className="side-foot">
          <Pulse />
          <ZoneSwitch />
          <div className="who">
            <div>
              <b>{identity.name}</b>
              <span>{identity.role.replace('_', ' ')}{identity.tenant_id ? ` · ${identity.tenant_id}` : ''}</span>
            </div>
            <ThemeSwitch />
            <button type="button" className="button quiet square" aria-label="Sign out" title="Sign out" onClick={signOut}>
              <Icon name="out" />
            </button>
          </div>
        </div>
      </div>
      <main id="main" ref={main} tabIndex={-1}>
        <Away />
        {out.error && (
          <div className="banner bad" role="alert">
            <Icon name="warn" />
            <p>
              <b>You are still signed in.</b> {sentence(out.error)}
            </p>
            <Button busy={out.isPending} onClick={signOut}>Sign out again</Button>
          </div>
        )}
        {allowed.view && <Incidents />}
        <FromFile />
        <Enforcement />
        <Boundary key={here}>
          <Page path={path} allowed={allowed} />
        </Boundary>
      </main>
      <Toasts />
    </div>
  );
}

function Page({ path, allowed }: { path: string[]; allowed: ReturnType<typeof may> }): ReactNode {
  const [first = '', second] = path;
  const place = PLACES.find((one) => one.path === first);
  if (!place) return <Nothing />;
  if (!place.for(allowed)) {
    return (
      <>
        <PageHead title={place.name} />
        <Empty icon="lists" title="This is not for your role">
          <p>Ask an admin for a token that may see it.</p>
        </Empty>
      </>
    );
  }
  switch (first) {
    case '':
      return <Overview />;
    case 'playground':
      return <Playground />;
    case 'rules':
      return second === undefined ? <Rules /> : <RulePage key={path[1]} id={second} />;
    case 'clients':
      return <Clients />;
    case 'keys':
      return second === undefined ? <Keys /> : <KeyPage key={second} id={second} />;
    case 'spend':
      return <Spend />;
    case 'lists':
      return <Lists />;
    case 'tiers':
      return <Tiers />;
    case 'queue':
      return <Queue />;
    case 'audit':
      return <Audit />;
    case 'nodes':
      return <Nodes />;
    default:
      return <Tokens />;
  }
}

function Nothing() {
  return (
    <>
      <PageHead title="Nothing here" />
      <Empty title="There is no such page">
        <Link href="/">Go to the overview</Link>
      </Empty>
    </>
  );
}

/** Whether what is shown is live. */
function Pulse() {
  const { state, pulse } = useConnection();
  const words = { fresh: 'Connecting', live: 'Live', away: 'Server away', paused: 'Paused' } as const;
  return (
    <p className={`pulse ${state}`}>
      <i aria-hidden="true" />
      {words[state]}
      {pulse && <span>revision {pulse.revision}</span>}
    </p>
  );
}

function Away() {
  const { state, retryAt } = useConnection();
  const [now, setNow] = useState(() => Date.now());
  const isAway = state === 'away';
  useEffect(() => {
    if (!isAway) return;
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [isAway]);
  if (!isAway) return null;
  const seconds = retryAt === null ? 0 : Math.max(0, Math.ceil((retryAt - now) / 1000));
  return (
    <div className="banner bad" role="alert">
      <Icon name="warn" />
      <p>
        <b>The server does not answer.</b> What you see may be old. <span aria-hidden="true">Trying again {seconds > 0 ? `in ${String(seconds)} s` : 'now'}.</span>
      </p>
      <Button onClick={connection.retryNow}>Try now</Button>
    </div>
  );
}

/** What an operator must see, with what to do about it. */
function Incidents() {
  const incidents = useIncidents();
  const lasting = incidents.data?.items.filter(({ until }) => until === null) ?? [];
  return lasting.map(({ kind, title, text, next_step: next, since }) => (
    <div key={kind} className="banner bad" role="alert">
      <Icon name="warn" />
      <p>
        <b>{title}</b> {text}. {text.includes(next) ? '' : `${next}. `}
        <small>Since <Ago at={since} /></small>
      </p>
    </div>
  ));
}

function FromFile() {
  if (!useIsFromFile()) return null;
  return (
    <div className="banner">
      <Icon name="rules" />
      <p>
        <b>The rules of this node come from a file.</b> It was started with <code>--rules</code>: rules, lists and plans are shown here, and changed there.
      </p>
    </div>
  );
}

function Enforcement() {
  const { pulse } = useConnection();
  if (!pulse || pulse.enforcement === 'on') return null;
  return (
    <div className="banner warn">
      <Icon name="warn" />
      <p>
        <b>{pulse.enforcement === 'shadow' ? 'Shadow mode: nothing is refused.' : 'Enforcement is off: nothing is counted or refused.'}</b>{' '}
        {pulse.enforcement === 'shadow' && 'Decisions are made and reported, and every request passes.'}
      </p>
      <Link href="/nodes" className="button plain">
        Change
      </Link>
    </div>
  );
}
