// Virtual keys in the console: made, used, rotated, changed, revoked; by each role as far as it may.
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

interface Key {
  id: string;
  name: string;
  status: string;
  previous_secret_until?: string;
  secret?: string;
  budget?: { amount: string };
  limits?: { limit: number }[];
}

let server: Server;
let browser: Browser;

beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
});

afterAll(async () => {
  await browser.close();
  await server.end();
});

const keyOf = async (name: string) => (await server.admin<{ items: Key[] }>('GET', `keys?name=${encodeURIComponent(name)}`)).items[0];
/** What the holder of a secret is answered. */
const use = (secret: string) => server.allow({ apiKey: secret, modelId: 'gpt-4o', money: { currency: 'USD', amount: '1.25' } });

test('a key is made, used, rotated, changed and revoked', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  const dialog = page.getByRole('dialog');
  await window.signIn();
  await page.getByRole('link', { name: 'Keys', exact: true }).click();
  await page.getByText('A virtual key is an API key that Tollgate issues').waitFor();
  await window.accessible('no keys');
  await page.getByRole('link', { name: 'Make the first key' }).click();
  await window.heading('New key');
  await expect.poll(() => page.evaluate(() => document.activeElement?.getAttribute('data-part'))).toBe('name');

  // What is wrong is said next to its field, and nothing is sent.
  await page.getByLabel('Tags').fill('team');
  await page.getByLabel('It may spend a limited amount of money').check();
  await page.getByLabel('Amount', { exact: true }).fill('five');
  await page.getByRole('button', { name: 'Make the key' }).click();
  await page.getByText('Say what the key is for').first().waitFor();
  await page.getByText('such as team=search').first().waitFor();
  await page.getByText('An amount such as 5.00, with at most nine decimals').first().waitFor();
  await window.accessible('a key with faults');
  expect((await server.admin<{ items: Key[] }>('GET', 'keys')).items).toEqual([]);

  await page.getByLabel('Name').fill('search team');
  await page.getByLabel('Owner').fill('ann');
  await page.getByLabel('Tenant').fill('acme');
  await page.getByLabel('Tags').fill('team=search');
  await page.getByLabel('Models').fill('gpt-4o*');
  await page.getByRole('button', { name: 'Add a limit' }).click();
  await page.getByLabel('Amount', { exact: true }).fill('5.00');
  await page.getByText('Its holder may make 60 requests per minute and spend 5.00 USD per calendar month (UTC).').waitFor();
  await page.getByRole('button', { name: 'Make the key' }).click();
  await dialog.getByText('The secret of search team').waitFor();
  await window.accessible('a secret');
  const first = (await dialog.locator('code').first().textContent()) ?? '';
  expect(first).toMatch(/^tg_live_[0-9a-f]{64}$/);
  await dialog.getByRole('button', { name: 'I have it' }).click();
  await window.heading('search team');
  expect(await page.getByText(first).count()).toBe(0);

  // Its use is shown as money, on its own page, in the list and on the pages of its owner.
  expect((await use(first)).allowed).toBe(true);
  await page.reload();
  await page.getByText('1.25 / 5.00 USD').waitFor();
  await window.accessible('a key');
  await page.getByRole('link', { name: 'ann', exact: true }).click();
  await page.getByRole('link', { name: 'search team' }).waitFor();
  await window.accessible('a client with a key');
  await page.getByRole('link', { name: 'Keys', exact: true }).click();
  await page.getByText('1.25 / 5.00 USD').waitFor();
  await window.accessible('keys');
  await page.getByRole('searchbox').fill('nobody');
  await page.getByText('No key fits').waitFor();
  await page.getByRole('searchbox').fill('team=search');

  // Both secrets work until the first one ends.
  await page.getByRole('button', { name: 'Rotate search team' }).click();
  await dialog.getByLabel('The old secret ends').selectOption('1d');
  await window.accessible('rotate');
  await dialog.getByRole('button', { name: 'Rotate' }).click();
  await dialog.getByText('The previous secret is accepted until').waitFor();
  const second = (await dialog.locator('code').first().textContent()) ?? '';
  expect(second).not.toBe(first);
  await page.keyboard.press('Escape');
  expect((await keyOf('search team'))?.previous_secret_until).toBeDefined();
  for (const secret of [first, second]) expect((await use(secret)).allowed).toBe(true);
  await page.getByRole('link', { name: 'search team' }).click();
  await page.getByText('Two secrets are accepted.').waitFor();

  // A change shows what it changes before it is saved.
  await page.getByRole('link', { name: 'Change' }).click();
  await expect.poll(() => page.evaluate(() => document.activeElement?.getAttribute('data-part'))).toBe('budget');
  await page.getByLabel('Amount', { exact: true }).fill('7.50');
  await page.getByRole('button', { name: 'Review and save' }).click();
  await dialog.getByText('"amount": "7.50"').waitFor();
  await dialog.getByRole('button', { name: 'Save, in force at once' }).click();
  await page.getByText('3.75 / 7.50 USD').waitFor();
  expect((await keyOf('search team'))?.budget?.amount).toBe('7.50');

  // Disabled, and back by the toast; then disabled and deleted.
  await page.getByRole('button', { name: 'Revoke' }).click();
  await window.accessible('revoke');
  await dialog.getByRole('button', { name: 'Disable' }).click();
  await page.getByText('This key is disabled.').waitFor();
  await expect.poll(async () => (await use(second)).reason).toBe('INVALID_API_KEY');
  await page.getByRole('button', { name: 'Undo: search team is disabled.' }).click();
  await page.getByText('This key is disabled.').waitFor({ state: 'detached' });
  expect((await keyOf('search team'))?.status).toBe('active');
  await page.getByRole('button', { name: 'Revoke' }).click();
  await dialog.getByLabel('Delete it').check();
  await dialog.getByRole('button', { name: 'Delete' }).click();
  await page.getByText('No keys yet').waitFor();
  expect(await keyOf('search team')).toBeUndefined();
  await window.close();
});

test('what somebody else changed meanwhile is not overwritten', async () => {
  const made = await server.admin<Key>('POST', 'keys', { name: 'shared', limits: [{ limit: 10, window: '1m' }] });
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  await window.go(`/keys/${made.id}?edit=requests`);
  await page.getByLabel('How many').fill('20');
  await server.admin('PUT', `keys/${made.id}`, { name: 'shared', limits: [{ limit: 30, window: '1m' }] });
  await page.getByRole('alert', { name: 'Conflict' }).waitFor();
  expect(await page.getByLabel('How many').inputValue()).toBe('20');
  await page.getByRole('button', { name: 'Continue with mine' }).click();
  await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Save, in force at once' }).click();
  await page.getByText('Budget and limits').waitFor();
  expect((await keyOf('shared'))?.limits?.[0]?.limit).toBe(20);
  await window.close();
});

test('each role sees and does what it may', async () => {
  await server.admin('POST', 'keys', { name: 'of the installation', tenant_id: 'globex' });
  const [viewer, tenant] = await Promise.all([server.newToken('viewer'), server.newToken('tenant_admin', 'globex')]);
  await server.admin('POST', 'keys', { name: 'of the tenant' }, tenant);

  const looking = await Window.open(browser, server);
  await looking.signIn(viewer);
  await looking.go('/keys');
  await looking.page.getByRole('link', { name: 'of the tenant' }).click();
  await looking.heading('of the tenant');
  for (const name of ['Rotate', 'Revoke']) expect(await looking.page.getByRole('button', { name }).count()).toBe(0);
  expect(await looking.page.getByRole('link', { name: 'Edit' }).count()).toBe(0);
  await looking.close();

  const own = await Window.open(browser, server);
  const { page } = own;
  await own.signIn(tenant);
  await own.go('/keys');
  await page.getByText('2 keys').waitFor();
  expect(await page.getByText('shared').count()).toBe(0);
  await page.getByRole('button', { name: 'Revoke of the installation' }).click();
  await page.getByText('only such an admin can enable it again').waitFor();
  await page.getByRole('dialog').getByRole('button', { name: 'Disable' }).click();
  await page.getByText('of the installation is disabled.').waitFor();
  expect(await page.getByRole('button', { name: /^(Undo|Enable)/ }).count()).toBe(0);
  await page.getByRole('link', { name: 'of the tenant' }).click();
  await page.getByRole('link', { name: 'Edit' }).click();
  await page.getByLabel('Name').fill('of the tenant, renamed');
  await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Save, in force at once' }).click();
  await own.heading('of the tenant, renamed');
  await own.close();
});

test('many keys: few rows in the page, and the others are found by whole names', async () => {
  const keys = Array.from({ length: 5_200 }, (_, index) => ({ name: `key number ${String(index).padStart(4, '0')}`, tenant_id: 'hooli' }));
  await server.admin('POST', 'keys', { keys });
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  await window.go('/keys');
  await page.getByText('More than 5,000 keys').waitFor();
  expect(await page.locator('tbody tr:not(.space)').count()).toBeLessThanOrEqual(100);
  const { items } = await server.admin<{ items: Key[] }>('GET', 'keys?prefix=key_ff&limit=1000');
  const last = items[items.length - 1];
  await page.getByRole('searchbox').fill(last?.name ?? '');
  await page.getByRole('link', { name: last?.name ?? '', exact: true }).waitFor();
  await window.close();
});
