// What roles see, and that a page survives the server.
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

let server: Server;
let browser: Browser;

beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
  await server.admin('POST', 'rules', { rule_id: 'per-user', identifier_type: 'user_id', limit: 3, window: '1h', algorithm: 'sliding_window_log' });
  for (let index = 0; index < 5; index += 1) await server.allow({ userId: 'ann', tenantId: 'acme' });
});

afterAll(async () => {
  await browser.close();
  await server.end();
});

const places = (window: Window) => window.page.getByRole('navigation', { name: 'Pages' }).getByRole('link').allTextContents();

test('a viewer sees everything but tokens, and changes nothing', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn(await server.newToken('viewer'));
  expect((await places(window)).map((name) => name.trim())).toEqual(['Overview', 'Playground', 'Rules', 'Clients', 'Keys', 'Spend', 'Lists', 'Plans', 'Audit', 'Nodes']);
  await window.go('/rules');
  await page.getByText('per-user').first().waitFor();
  expect(await page.getByRole('link', { name: 'New rule' }).count()).toBe(0);
  expect(await page.getByRole('switch').count()).toBe(0);
  await window.go('/rules/per-user');
  expect(await page.getByLabel('How many').isDisabled()).toBe(true);
  expect(await page.getByRole('button', { name: 'Review and save' }).count()).toBe(0);
  await window.go('/playground');
  await page.getByRole('button', { name: 'Look' }).click();
  await page.getByText('BLOCKED').waitFor();
  expect(await page.getByRole('button', { name: 'Send 50' }).count()).toBe(0);
  await window.go('/lists');
  await page.getByText('Nobody is blocked').waitFor();
  expect(await page.getByRole('button', { name: 'Block somebody' }).count()).toBe(0);
  await window.go('/tokens');
  await page.getByText('This is not for your role').waitFor();
  await window.close();
});

test('a tenant admin sees and tightens what is its own', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn(await server.newToken('tenant_admin', 'acme'));
  expect((await places(window)).map((name) => name.trim())).toEqual(['Overview', 'Rules', 'Clients', 'Keys', 'Spend', 'Audit']);
  await page.getByText('You see what belongs to your tenant.').waitFor();
  await page.getByRole('link', { name: 'Rules' }).click();
  await page.getByText('No rules of your own yet').waitFor();
  expect(await page.getByText('built-in default').count()).toBe(0);
  await page.getByRole('link', { name: 'New rule', exact: true }).click();
  await page.getByLabel('Id', { exact: true }).fill('per-user');
  // The server says what an id must be.
  await page.getByRole('button', { name: 'Review and save' }).waitFor();
  await page.locator('.checks.bad').getByText('rule_id').waitFor();
  await page.getByLabel('Id', { exact: true }).fill('acme.tighter');
  await page.getByLabel('How many').fill('1');
  await page.getByText('The server would take it').waitFor();
  expect(await page.getByLabel('Scope').count()).toBe(0);
  await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByRole('button', { name: 'Save, in force at once' }).click();
  await page.getByText('acme.tighter is saved and in force.').waitFor();
  expect(await server.admin('GET', 'rules/acme.tighter')).toMatchObject({ tenant_id: 'acme', rule: { scope: 'tenant:acme:acme.tighter' } });
  // Changed once more: what the server has added is not sent back to it.
  await page.getByLabel('How many').fill('2');
  await page.getByText('The server would take it').waitFor();
  await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByRole('button', { name: 'Save, in force at once' }).click();
  await page.getByText('version 2', { exact: false }).first().waitFor();
  await window.go('/nodes');
  await page.getByText('This is not for your role').waitFor();
  await window.close();
});

test('a token that is revoked ends its session', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  const token = await server.newToken('operator');
  await window.signIn(token);
  const { token_id: id } = await server.admin<{ token_id: string }>('GET', 'whoami', undefined, token);
  await server.admin('DELETE', `tokens/${id}`);
  // The page asks again by itself, and hears of it.
  await page.getByLabel('Admin token').waitFor();
  await window.close();
});

test('the server goes and comes back, and the page with it', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  await page.getByText('Live', { exact: true }).waitFor();
  await server.stop();
  await page.getByRole('alert').getByText('The server does not answer.').waitFor();
  await page.getByRole('link', { name: 'Rules' }).click();
  await server.back();
  await page.getByText('Live', { exact: true }).waitFor();
  await page.getByRole('alert').waitFor({ state: 'detached' });
  // Without a reload, and still signed in.
  await page.getByRole('link', { name: 'per-user' }).waitFor();
  await page.getByRole('link', { name: 'Overview' }).click();
  await window.heading('Overview');
  await page.getByText('Time to decide').waitFor();
  await window.close();
});

test('a page that nobody sees asks for nothing', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  await page.getByText('Live', { exact: true }).waitFor();
  await page.evaluate(() => {
    Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => 'hidden' });
    document.dispatchEvent(new Event('visibilitychange'));
  });
  await page.getByText('Paused').waitFor({ state: 'attached' });
  await page.evaluate(() => {
    Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => 'visible' });
    document.dispatchEvent(new Event('visibilitychange'));
  });
  await page.getByText('Live', { exact: true }).waitFor();
  await window.close();
});
