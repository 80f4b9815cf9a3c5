// Calls of the admin API. The cookie that signs in is out of a script's reach; changes carry a header that other sites
// cannot send.
import type { Identity, Page, Problem, Secret, SignInOptions } from './types';
import { connection } from './connection';

const PREFIX = '/admin/api/v1/rate-limits/';
const SESSION = '/admin/api/v1/session';
const OIDC = '/admin/api/v1/oidc';

/** How long an answer is waited for. */
const PATIENCE_MS = 15_000;

/** An answer that is an error, in the server's own words. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly fields: { field?: string | null; message: string }[],
    /** The version that is there, where that is what is wrong. */
    readonly tag: string | null,
  ) {
    super(message);
  }
}

/** The server did not answer at all. */
export class AwayError extends Error {
  constructor() {
    super('The server does not answer. This page tries again by itself.');
  }
}

/** A sign-in link that does not work any more. */
export class LinkError extends Error {
  constructor() {
    super('This link was used already, or its ten minutes are over. Sign in with a token, or start the server again for a new link.');
  }
}

export interface Options {
  query?: Record<string, string | number | boolean | undefined | null>;
  body?: unknown;
  /** The version that must be there; 0 for none. */
  ifVersion?: number | undefined;
  signal?: AbortSignal;
}

let onSignedOut: () => void = () => undefined;

/** Whom to tell that the session is over. */
export function whenSignedOut(tell: () => void) {
  onSignedOut = tell;
}

/** Counts the secrets that this page was signed in with: what was asked with an older one says nothing about the session. */
let era = 0;
let isRenewing = false;

/**
 * Rotates the caller's own token, and signs in with the new secret at once. It passes the secret to `keep` first, so
 * that a failure afterwards does not lose it.
 */
export async function renew(path: string, keep: (secret: Secret) => void): Promise<Identity> {
  isRenewing = true;
  try {
    const secret = await call<Secret>('POST', path);
    keep(secret);
    return await session.signIn(secret.token);
  } finally {
    era += 1;
    isRenewing = false;
  }
}

async function send(method: string, url: string, options: Options): Promise<Response> {
  const headers = new Headers({ accept: 'application/json', 'x-tollgate-console': '1' });
  if (options.body !== undefined) headers.set('content-type', 'application/json');
  if (options.ifVersion === 0) headers.set('if-none-match', '*');
  else if (options.ifVersion !== undefined) headers.set('if-match', `"${String(options.ifVersion)}"`);
  const patience = AbortSignal.timeout(PATIENCE_MS);
  try {
    const response = await fetch(url, {
      method,
      headers,
      credentials: 'same-origin',
      body: options.body === undefined ? null : JSON.stringify(options.body),
      signal: options.signal ? AbortSignal.any([options.signal, patience]) : patience,
    });
    connection.answered();
    return response;
  } catch (error) {
    if (options.signal?.aborted) throw error;
    connection.failed();
    throw new AwayError();
  }
}

async function read<T>(response: Response): Promise<T> {
  if (response.ok) return (response.status === 204 ? undefined : await response.json()) as T;
  const problem = (await response.json().catch(() => ({}))) as Partial<Problem>;
  const fields = problem.errors ?? (problem.error ? [problem.error] : []);
  const message = problem.detail ?? problem.error?.message ?? `The server answered ${String(response.status)}.`;
  throw new ApiError(response.status, problem.code ?? 'ERROR', message, fields, response.headers.get('etag'));
}

export async function call<T>(method: string, path: string, options: Options = {}): Promise<T> {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(options.query ?? {})) {
    if (value !== undefined && value !== null && value !== '') query.set(name, String(value));
  }
  const tail = query.size > 0 ? `?${query.toString()}` : '';
  const born = era;
  const response = await send(method, `${PREFIX}${path}${tail}`, options);
  if (response.status === 401 && born === era && !isRenewing) onSignedOut();
  return read<T>(response);
}

export function get<T>(path: string, query?: Options['query'], signal?: AbortSignal): Promise<T> {
  return call<T>('GET', path, { ...(query ? { query } : {}), ...(signal ? { signal } : {}) });
}

/** The most entries that a list is followed to. */
const MAX_ENTRIES = 20_000;

/** All pages of a list, up to a bound. */
export async function all<T>(path: string, query: Options['query'] = {}, signal?: AbortSignal): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | null = null;
  do {
    const page: Page<T> = await get<Page<T>>(path, { ...query, limit: 1000, cursor }, signal);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor !== null && items.length < MAX_ENTRIES);
  return items;
}

/** One segment of a path. */
export function segment(text: string): string {
  return encodeURIComponent(text);
}

/** The code of a sign-in link that was opened. It works once, so it leaves the address at once. */
let code = takeCode();

function takeCode(): string | null {
  if (window.location.pathname !== '/sign-in') return null;
  const found = window.location.hash.slice(1);
  history.replaceState(history.state, '', '/');
  return found === '' ? null : found;
}

export const session = {
  /** Signs in with the link that was opened, if one was; else returns who is signed in. */
  async begin(): Promise<Identity | null> {
    const given = code;
    code = null;
    if (given === null) return session.who();
    try {
      return await read<Identity>(await send('POST', SESSION, { body: { code: given } }));
    } catch (error) {
      // Used or ended: an earlier session stays.
      if (!(error instanceof ApiError)) code = given;
      const known = await session.who();
      if (known) return known;
      throw error instanceof ApiError && error.status === 401 ? new LinkError() : error;
    }
  },
  /** Who is signed in; nobody is null. */
  async who(): Promise<Identity | null> {
    const response = await send('GET', SESSION, {});
    return response.status === 401 ? null : read<Identity>(response);
  },
  async signIn(token: string): Promise<Identity> {
    return read<Identity>(await send('POST', SESSION, { body: { token } }));
  },
  /** Signs out; where to sign out of the provider as well, if the session came from one. */
  async signOut(): Promise<string | null> {
    const answer = await read<{ end_session_url: string } | undefined>(await send('DELETE', SESSION, {}));
    return answer?.end_session_url ?? null;
  },
};

/** The page that was open when single sign-on began. */
const RETURN = 'tollgate-return';

/** Opens that page again, when the browser comes back from the provider. */
function takeReturn() {
  if (window.location.pathname !== '/') return;
  const page = sessionStorage.getItem(RETURN);
  sessionStorage.removeItem(RETURN);
  if (page !== null && /^\/(?![/\\])/.test(page)) history.replaceState(history.state, '', page);
}

takeReturn();

export const sso = {
  /** Whether people can sign in through a provider. */
  async options(): Promise<SignInOptions> {
    return read<SignInOptions>(await send('GET', OIDC, {}));
  },
  start() {
    sessionStorage.setItem(RETURN, `${window.location.pathname}${window.location.search}`);
    window.location.assign(`${OIDC}/start`);
  },
};
