// Single sign-on through a real provider: roles, tenants, the end of a session, signing out, and people without a role.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

const SECRET = 'a-secret-of-the-tests-0123456789';
const SCRIPT = resolve(import.meta.dirname, '../../testkit/oidc/provider.mjs');
const PICTURES = process.env['PICTURES'];

let provider: ChildProcess;
let issuer: string;
let browser: Browser;
const folder = mkdtempSync(join(tmpdir(), 'tollgate-sso-'));
const servers: Server[] = [];

/** A port that is free now. The provider sends browsers back to an address that the configuration has. */
async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address() as AddressInfo;
  probe.close();
  await once(probe, 'close');
  return port;
}

async function serverWith(sessionTtl: string): Promise<Server> {
  const port = await freePort();
  const file = join(folder, `tollgate-${String(port)}.yaml`);
  const oidc = {
    issuer,
    client_id: 'tollgate',
    client_secret: SECRET,
    redirect_uri: `http://127.0.0.1:${String(port)}/admin/api/v1/oidc/callback`,
    scopes: ['openid', 'email', 'groups'],
    session_ttl: sessionTtl,
    roles: [
      { group: 'tollgate-admins', role: 'admin' },
      { group: 'sre', role: 'operator' },
      { group: 'everyone', role: 'viewer' },
      { group: 'acme-admins', role: 'tenant_admin', tenant: 'acme' },
    ],
  };
  writeFileSync(file, JSON.stringify({ oidc }));
  const server = await Server.startAt(`127.0.0.1:${String(port)}`, ['--config', file]);
  servers.push(server);
  return server;
}

/** A window that may visit the provider, too. */
async function open(server: Server, options = {}): Promise<Window> {
  return Window.open(browser, server, options, [issuer]);
}

async function signIn(window: Window, name: string) {
  const { page } = window;
  await page.getByRole('button', { name: 'Continue with single sign-on' }).click();
  await page.getByLabel('Name').fill(name);
  await page.getByRole('button', { name: 'Continue' }).click();
}

async function picture(window: Window, name: string) {
  if (PICTURES !== undefined) await window.page.screenshot({ path: join(PICTURES, `${name}.png`) });
}

beforeAll(async () => {
  provider = spawn('node', [SCRIPT], { env: { ...process.env, CLIENT_SECRET: SECRET, PORT: '0' }, stdio: ['ignore', 'pipe', 'inherit'] });
  const stdout = provider.stdout;
  if (!stdout) throw new Error('no output');
  const lines = createInterface({ input: stdout });
  const [first] = (await Promise.race([once(lines, 'line'), once(provider, 'exit').then(() => { throw new Error('the provider ended: `make deps` installs it'); })])) as [string];
  issuer = first.replace('listening ', '');
  browser = await launch();
});

afterAll(async () => {
  await browser.close();
  for (const server of servers) await server.end();
  provider.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
});

test('a person signs in with the role of a group, comes back to the same page, and signs out', async () => {
  const server = await serverWith('1h');
  const window = await open(server);
  const { page } = window;
  await window.go('/rules?sort=name');
  await page.getByRole('button', { name: 'Continue with single sign-on' }).waitFor();
  await window.accessible('the sign-in page with single sign-on');
  await picture(window, 'sign-in-light');
  await signIn(window, 'ann');
  await window.heading('Rules');
  expect(new URL(page.url()).pathname + new URL(page.url()).search).toBe('/rules?sort=name');
  const who = page.locator('.who');
  await who.getByText('ann@example.com').waitFor();
  await who.getByText('operator').waitFor();
  expect(await page.getByRole('link', { name: 'Tokens' }).count()).toBe(0);
  // A change has the person's name in the audit log.
  await page.evaluate(async () => {
    await fetch('/admin/api/v1/rate-limits/rules', { method: 'POST', headers: { 'x-tollgate-console': '1', 'content-type': 'application/json' }, body: JSON.stringify({ rule_id: 'by-ann', identifier_type: 'user_id', limit: 3, window: '1h' }) });
  });
  await page.getByRole('link', { name: 'Audit' }).click();
  await page.getByText('ann@example.com').nth(1).waitFor();
  await page.reload();
  await window.heading('Audit');
  await page.getByRole('button', { name: 'Sign out', exact: true }).click();
  const out = page.getByRole('link', { name: 'Sign out of the provider, too' });
  await out.waitFor();
  await window.accessible('the sign-in page after a sign-out');
  await picture(window, 'signed-out-light');
  await page.reload();
  await page.getByLabel('Admin token').waitFor();
  // The provider still knows the browser: it asks for no name.
  await page.getByRole('button', { name: 'Continue with single sign-on' }).click();
  await window.heading('Overview');
  await page.getByRole('button', { name: 'Sign out', exact: true }).click();
  await out.click();
  expect(page.url().startsWith(`${issuer}/session/end`)).toBe(true);
  await window.close();
});

test("a tenant's admin sees one tenant, and an admin ends the session", async () => {
  const server = await serverWith('1h');
  const window = await open(server);
  const { page } = window;
  await window.go('/');
  await signIn(window, 'tess');
  await page.locator('.who').getByText('tenant admin · acme').waitFor();
  expect(await page.getByRole('link', { name: 'Nodes' }).count()).toBe(0);
  const admin = await open(server);
  await admin.go('/tokens');
  await signIn(admin, 'ada');
  await admin.heading('Tokens');
  const row = admin.page.getByRole('row').filter({ hasText: 'tess@example.com' });
  await row.getByText('session', { exact: true }).waitFor();
  expect(await row.getByRole('button', { name: 'Rotate tess@example.com' }).count()).toBe(0);
  await picture(admin, 'tokens-light');
  await row.getByRole('button', { name: 'Revoke tess@example.com' }).click();
  await admin.page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
  await admin.page.getByText('The token of tess@example.com has ended.').waitFor();
  await admin.close();
  // The page asks again by itself, and hears of it.
  await page.getByLabel('Admin token').waitFor();
  await window.close();
});

test('a session ends by itself, and the page says where to sign in', async () => {
  const server = await serverWith('4s');
  const window = await open(server);
  await window.go('/');
  await signIn(window, 'vic');
  await window.page.locator('.who').getByText('viewer').waitFor();
  await window.page.getByRole('button', { name: 'Continue with single sign-on' }).waitFor();
  await window.close();
});

test('who has no role sees a page that says so, and no session begins', async () => {
  const server = await serverWith('1h');
  for (const colorScheme of ['light', 'dark'] as const) {
    for (const width of [1440, 390]) {
      const window = await open(server, { colorScheme, viewport: { width, height: 844 } });
      const { page } = window;
      await window.go('/');
      await page.getByRole('button', { name: 'Continue with single sign-on' }).waitFor();
      await picture(window, `sign-in-${colorScheme}-${String(width)}`);
      await signIn(window, 'nora');
      await window.heading('You have no role here');
      await page.getByText('nora@example.com').waitFor();
      expect(await page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth)).toBe(true);
      await window.accessible('the page for people without a role');
      await picture(window, `no-role-${colorScheme}-${String(width)}`);
      const cookies = await window.context.cookies();
      expect(cookies.filter(({ name }) => name.startsWith('tollgate_'))).toEqual([]);
      await page.getByRole('link', { name: 'To the sign-in page' }).click();
      await page.getByLabel('Admin token').waitFor();
      await window.close();
    }
  }
});

test("another browser's answer signs nobody in", async () => {
  const server = await serverWith('1h');
  const attacker = await open(server);
  let stolen = '';
  // The provider's answer is kept from the server, so that its code is still unused.
  await attacker.context.route(`${issuer}/interaction/**`, async (route) => {
    if (route.request().method() !== 'POST') return route.continue();
    let answer = await route.fetch({ maxRedirects: 0 });
    let target = '';
    for (let step = 0; step < 5 && !target.includes('/admin/api/v1/oidc/callback?'); step += 1) {
      if (target !== '') answer = await attacker.context.request.get(target, { maxRedirects: 0 });
      target = new URL(answer.headers()['location'] ?? '', issuer).href;
    }
    stolen = target;
    await route.fulfill({ contentType: 'text/html', body: '<title>Kept</title>' });
  });
  await attacker.go('/');
  await signIn(attacker, 'ada');
  await expect.poll(() => stolen).toContain('/admin/api/v1/oidc/callback?code=');
  await attacker.close();
  const window = await open(server);
  await window.page.goto(stolen);
  await window.heading('This sign-in cannot be completed');
  await window.go('/');
  await window.page.getByLabel('Admin token').waitFor();
  await window.close();
});

test('without single sign-on there is no button', async () => {
  const server = await Server.start();
  servers.push(server);
  const window = await open(server);
  await window.signIn();
  await window.page.getByRole('button', { name: 'Sign out', exact: true }).click();
  await window.page.getByText('The first start of the server has printed one.').waitFor();
  expect(await window.page.getByRole('button', { name: 'Continue with single sign-on' }).count()).toBe(0);
  await window.close();
});
