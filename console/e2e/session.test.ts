// Signing in and out, and secrets, when things go wrong.
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

const SESSION = '/admin/api/v1/session';

let server: Server;
let browser: Browser;

beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
});

afterAll(async () => {
  await browser.close();
  await server.end();
});

test("one's own token is rotated: the secret is shown, and the page stays signed in", async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  const old = await server.newToken('admin');
  await window.signIn(old);
  await page.getByRole('link', { name: 'Tokens' }).click();
  await page.getByRole('button', { name: 'Rotate a admin' }).click();
  await page.getByRole('dialog').getByText('you stay signed in').waitFor();
  await page.getByRole('dialog').getByRole('button', { name: 'Rotate' }).click();
  const secret = (await page.locator('.secret code').textContent()) ?? '';
  expect(await server.admin('GET', 'whoami', undefined, secret)).toMatchObject({ name: 'a admin' });
  await expect(server.admin('GET', 'whoami', undefined, old)).rejects.toThrow('401');
  await page.getByRole('button', { name: 'I have it' }).click();
  await page.getByRole('link', { name: 'Lists' }).click();
  await page.getByText('Nobody is blocked').waitFor();
  await page.reload();
  await window.heading('Lists');
  await window.close();
});

test('a secret outlives the session that made it', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  const mine = await server.admin<{ token: string; token_id: string }>('POST', 'tokens', { name: 'short-lived', role: 'admin' });
  await window.signIn(mine.token);
  await page.getByRole('link', { name: 'Tokens' }).click();
  // The new secret cannot sign in: the sign-in form comes, and the secret stays above it.
  await page.route(`**${SESSION}`, (route) => (route.request().method() === 'POST' ? route.abort() : route.continue()));
  await page.getByRole('button', { name: 'Rotate short-lived' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Rotate' }).click();
  await page.locator('.secret code').waitFor();
  await page.locator('form.sign-in').waitFor();
  const secret = (await page.locator('.secret code').textContent()) ?? '';
  expect(await server.admin('GET', 'whoami', undefined, secret)).toMatchObject({ name: 'short-lived' });
  await window.close();
});

test('a sign-out that fails is reported, and can be tried again', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  await page.route(`**${SESSION}`, (route) => (route.request().method() === 'DELETE' ? route.fulfill({ status: 503, json: { detail: 'too many calls' } }) : route.continue()));
  await page.getByRole('button', { name: 'Sign out', exact: true }).click();
  await page.getByRole('alert').getByText('You are still signed in.').waitFor();
  await page.unroute(`**${SESSION}`);
  await page.getByRole('button', { name: 'Sign out again' }).click();
  await page.getByLabel('Admin token').waitFor();
  await page.reload();
  await page.getByLabel('Admin token').waitFor();
  await window.close();
});

test('a session that ends leaves nothing for the next', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await server.admin('POST', 'rules', { rule_id: 'secret-project', identifier_type: 'user_id', limit: 3, window: '1h' });
  const mine = await server.admin<{ token: string; token_id: string }>('POST', 'tokens', { name: 'first', role: 'operator' });
  await window.signIn(mine.token);
  await page.getByRole('link', { name: 'Rules' }).click();
  await page.getByRole('link', { name: 'secret-project' }).waitFor();
  await server.admin('DELETE', `tokens/${mine.token_id}`);
  // The page asks again by itself, and hears of it.
  await page.getByLabel('Admin token').fill(await server.newToken('tenant_admin', 'other'));
  // The next one's answer does not come: what is seen until then must not be the one before's.
  await page.route('**/rate-limits/rules**', () => undefined);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await window.heading('Rules');
  await page.getByRole('status', { name: 'Loading' }).waitFor();
  expect(await page.getByText('secret-project').count()).toBe(0);
  await page.unrouteAll({ behavior: 'ignoreErrors' });
  await window.close();
});

test('who has to wait sees why, and where to sign in', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await page.route(`**${SESSION}`, (route) => (route.request().method() === 'GET' ? route.fulfill({ status: 429, json: { detail: 'too many wrong tokens: try again in 60 s' } }) : route.continue()));
  await window.go('/');
  await page.getByText('too many wrong tokens').waitFor();
  await window.signIn();
  await window.heading('Overview');
  await window.close();
});

test('a cookie whose token has ended is taken away, and is no guess', async () => {
  const port = new URL(server.url).port;
  const cookie = `tollgate_session_${port}=ended-ended-ended-ended-ended`;
  for (let index = 0; index < 8; index += 1) {
    const answer = await fetch(`${server.url}${SESSION}`, { headers: { cookie } });
    expect(answer.status).toBe(401);
    expect(answer.headers.get('set-cookie')).toMatch(/=;.*Max-Age=0/);
  }
  // A wrong token in the header is not yet one too many.
  await expect(server.admin('GET', 'whoami', undefined, 'wrong-wrong-wrong-wrong-wrong')).rejects.toThrow('401');
  // As many as a machine can send are guesses all the same.
  const statuses: number[] = [];
  for (let index = 0; index < 60; index += 1) {
    statuses.push((await fetch(`${server.url}${SESSION}`, { headers: { cookie } })).status);
  }
  expect(statuses).toContain(429);
});
