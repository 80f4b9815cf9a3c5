// How the console is served: by the binary, under a strict policy, and with the types it was built for.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Server } from './server';

const SESSION = '/admin/api/v1/session';
let server: Server;

beforeAll(async () => {
  server = await Server.start();
});

afterAll(() => server.end());

const ask = (path: string, init: RequestInit = {}) => fetch(`${server.url}${path}`, init);

test('the types are those of this server', async () => {
  const mine: unknown = JSON.parse(readFileSync(join(import.meta.dirname, '../openapi.json'), 'utf8'));
  const theirs: unknown = await (await ask('/openapi.json')).json();
  expect(mine, 'openapi.json is old: scripts/console-types.sh takes the new one').toEqual(theirs);
});

test('pages are answered with the console, everything else as before', async () => {
  for (const path of ['/', '/rules', '/rules/a/b', '/tokens', '/audit?kind=decisions']) {
    const answer = await ask(path);
    expect(answer.status, path).toBe(200);
    expect(answer.headers.get('content-type')).toBe('text/html; charset=utf-8');
    expect(answer.headers.get('cache-control')).toBe('no-cache');
    expect(answer.headers.get('content-security-policy')).toBe("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'");
    expect(answer.headers.get('x-content-type-options')).toBe('nosniff');
    expect(answer.headers.get('referrer-policy')).toBe('no-referrer');
    expect(await answer.text()).not.toMatch(/<style|style=|<script>|onclick/);
  }
  for (const path of ['/rate-limit/none', '/admin', '/nothing', '/assets/none.js', '/api/v1/none']) {
    const answer = await ask(path);
    expect(answer.status, path).toBe(404);
    expect(answer.headers.get('content-type'), path).toContain('application/json');
  }
  expect((await ask('/admin/api/v1/none')).status).toBe(401);
  expect((await ask('/metrics')).headers.get('content-type')).toContain('openmetrics');
  expect((await ask('/', { method: 'POST' })).status).toBe(404);
});

test('files are compressed beforehand and cached as immutable; the page is revalidated', async () => {
  const page = await ask('/');
  const tag = page.headers.get('etag') ?? '';
  expect((await ask('/', { headers: { 'if-none-match': tag } })).status).toBe(304);
  const script = /src="(\/assets\/[^"]+\.js)"/.exec(await page.text())?.[1] ?? '';
  const plain = await ask(script, { headers: { 'accept-encoding': 'identity' } });
  expect(plain.headers.get('cache-control')).toBe('public, max-age=31536000, immutable');
  expect(plain.headers.get('content-encoding')).toBeNull();
  const text = await plain.text();
  for (const coding of ['gzip', 'br']) {
    const answer = await ask(script, { headers: { 'accept-encoding': coding } });
    expect(answer.headers.get('content-encoding')).toBe(coding);
    expect(await answer.text()).toBe(text);
  }
});

test('the cookie signs in, and other sites cannot use it', async () => {
  const sent = { method: 'POST', headers: { 'x-tollgate-console': '1' }, body: JSON.stringify({ token: server.token }) };
  expect((await ask(SESSION, { ...sent, headers: {} })).status).toBe(403);
  expect((await ask(SESSION, { ...sent, headers: { 'x-tollgate-console': '1', origin: 'http://evil.example' } })).status).toBe(403);
  expect((await ask(SESSION, { ...sent, body: JSON.stringify({ token: 'wrong' }) })).status).toBe(401);
  const signed = await ask(SESSION, sent);
  const given = signed.headers.get('set-cookie') ?? '';
  expect(given).toMatch(/^tollgate_session_\d+=[^;]+; Path=\/admin; HttpOnly; SameSite=Strict$/);
  const cookie = given.split(';')[0] ?? '';
  const rules = '/admin/api/v1/rate-limits/rules';
  expect(await (await ask(SESSION, { headers: { cookie } })).json()).toMatchObject({ role: 'admin' });
  expect((await ask(rules, { headers: { cookie } })).status).toBe(200);
  const rule = JSON.stringify({ rule_id: 'x', identifier_type: 'user_id', limit: 1, window: '1m' });
  const change = (headers: Record<string, string>) => ask(rules, { method: 'POST', headers: { cookie, ...headers }, body: rule });
  expect((await change({})).status).toBe(403);
  expect((await change({ 'x-tollgate-console': '1', origin: 'http://evil.example' })).status).toBe(403);
  expect((await change({ 'x-tollgate-console': '1', origin: server.url })).status).toBe(201);
  // A header that is wrong is not made good by a cookie.
  expect((await ask(rules, { headers: { cookie, authorization: 'Bearer wrong' } })).status).toBe(401);
  const out = await ask(SESSION, { method: 'DELETE', headers: { cookie, 'x-tollgate-console': '1' } });
  expect([out.status, out.headers.get('set-cookie')]).toEqual([204, expect.stringContaining('Max-Age=0')]);
  await server.stop();
  await server.back();
  expect((await ask(SESSION, { headers: { cookie } })).status).toBe(200);
});
