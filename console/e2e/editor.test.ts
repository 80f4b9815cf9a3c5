// The editor keeps what was typed, and reports a change to a rule that no longer exists.
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

const RULE = { identifier_type: 'user_id', limit: 3, window: '1h', algorithm: 'sliding_window_log' };

let server: Server;
let browser: Browser;

beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
});

afterAll(async () => {
  await browser.close();
  await server.end();
});

beforeEach(async () => {
  await server.admin('POST', 'rules', { rule_id: 'kept', ...RULE });
});

/** Says yes or no to what the page asks next, and what it asked. */
function answerNext(window: Window, isYes: boolean): Promise<string> {
  return new Promise((resolve) => {
    window.page.once('dialog', (dialog) => {
      resolve(dialog.message());
      void (isYes ? dialog.accept() : dialog.dismiss());
    });
  });
}

test('a new rule of an id that exists says so, before and at saving', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  await page.route('**/events**', (route) => route.abort());
  await window.go('/rules/new');
  await page.getByLabel('Id', { exact: true }).fill('kept');
  await page.getByRole('alert').getByText('There is a rule of this id.').waitFor();
  expect(await page.getByRole('button', { name: 'Review and save' }).isDisabled()).toBe(true);
  // Another makes it between the look and the saving.
  await page.getByLabel('Id', { exact: true }).fill('raced');
  await page.getByText('The server would take it').waitFor();
  await server.admin('POST', 'rules', { rule_id: 'raced', ...RULE });
  await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByRole('button', { name: 'Save, in force at once' }).click();
  await page.getByRole('alert').getByText('There is a rule of this id.').waitFor();
  const asked = answerNext(window, true);
  await page.getByRole('link', { name: 'Open it' }).click();
  expect(await asked).toBe('Leave without saving this rule?');
  await window.heading('raced');
  expect(await server.admin('GET', 'rules/raced')).toMatchObject({ version: 1 });
  await window.close();
});

test('what was typed stays through versions, links and the way back', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  await page.getByRole('link', { name: 'Rules' }).click();
  await page.getByRole('link', { name: 'kept' }).click();
  const many = page.getByLabel('How many');
  await many.fill('8');
  await page.getByRole('button', { name: 'Versions' }).click();
  await page.getByText('in force').first().waitFor();
  await page.getByRole('button', { name: 'Rule', exact: true }).click();
  expect(await many.inputValue()).toBe('8');
  let asked = answerNext(window, false);
  await page.getByRole('link', { name: 'Lists' }).click();
  await asked;
  await window.heading('kept');
  asked = answerNext(window, false);
  await page.evaluate(() => history.back());
  await asked;
  await page.waitForURL('**/rules/kept');
  expect(await many.inputValue()).toBe('8');
  asked = answerNext(window, true);
  await page.evaluate(() => history.back());
  await asked;
  await window.heading('Rules');
  expect(new URL(page.url()).pathname).toBe('/rules');
  // Nothing typed, nothing asked.
  await page.evaluate(() => history.forward());
  await window.heading('kept');
  await many.fill('9');
  const isAsked = await page.evaluate(() => !globalThis.dispatchEvent(new Event('beforeunload', { cancelable: true })));
  expect(isAsked).toBe(true);
  await page.getByRole('button', { name: 'Undo' }).click();
  await page.getByRole('button', { name: 'Undo' }).waitFor({ state: 'detached' });
  expect(await page.evaluate(() => globalThis.dispatchEvent(new Event('beforeunload', { cancelable: true })))).toBe(true);
  await window.close();
});

test.each([true, false])('a rule that was deleted meanwhile is a conflict (heard of: %s)', async (isHeard) => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  if (!isHeard) await page.route('**/events**', (route) => route.abort());
  await window.go('/rules/kept');
  await page.getByLabel('How many').fill('8');
  await page.getByText('The server would take it').waitFor();
  await server.admin('DELETE', 'rules/kept');
  if (!isHeard) {
    await page.getByRole('button', { name: 'Review and save' }).click();
    await page.getByRole('button', { name: 'Save, in force at once' }).click();
  }
  const conflict = page.getByRole('alert', { name: 'Conflict' });
  await conflict.getByText('This rule was deleted meanwhile.').waitFor();
  if (isHeard) {
    await conflict.getByRole('button', { name: 'Make it again' }).click();
    await page.getByRole('button', { name: 'Save, in force at once' }).click();
    await page.getByText('kept is saved and in force.').waitFor();
    await conflict.waitFor({ state: 'detached' });
    expect(await server.admin('GET', 'rules/kept')).toMatchObject({ rule: { limit: 8 } });
  } else {
    await conflict.getByRole('button', { name: 'Drop mine' }).click();
    await page.getByText('The rule was deleted.').first().waitFor();
    await conflict.waitFor({ state: 'detached' });
  }
  await window.close();
});

test('the plan of an API key is read, changed and taken away', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await server.admin('POST', 'tiers', { name: 'pro' });
  await window.signIn();
  await window.go('/clients?type=api_key&id=key-1');
  const plan = page.getByLabel('This client has');
  await plan.selectOption('pro');
  await page.getByText('The plan is changed.').waitFor();
  await page.reload();
  await expect.poll(() => plan.inputValue()).toBe('pro');
  await plan.selectOption('');
  await expect.poll(async () => (await server.admin<{ items: unknown[] }>('GET', 'client-tiers')).items).toEqual([]);
  await window.close();
});

test('a node with a file of rules shows them, and offers no changes', async () => {
  const file = JSON.stringify({ rules: [{ rule_id: 'from-file', ...RULE }], deny_list: ['ip:203.0.113.0/24'], tiers: ['pro'] });
  const other = await Server.start(file);
  const window = await Window.open(browser, other);
  const { page } = window;
  await window.signIn();
  await page.getByText('The rules of this node come from a file.').waitFor();
  await page.getByRole('link', { name: 'Rules' }).click();
  expect(await page.getByRole('link', { name: 'New rule' }).count()).toBe(0);
  await page.getByRole('link', { name: 'from-file' }).click();
  await page.getByText('In plain words').waitFor();
  expect(await page.getByRole('button', { name: 'Review and save' }).count()).toBe(0);
  expect(await page.getByLabel('How many').isDisabled()).toBe(true);
  await page.getByRole('link', { name: 'Lists' }).click();
  await page.getByText('203.0.113.0/24').filter({ visible: true }).first().waitFor();
  expect(await page.getByRole('button', { name: 'Block somebody' }).count()).toBe(0);
  await page.getByRole('link', { name: 'Plans' }).click();
  await page.getByText('pro', { exact: true }).first().waitFor();
  expect(await page.getByRole('button', { name: 'New plan' }).count()).toBe(0);
  await window.go('/rulez');
  await page.getByText('There is no such page').waitFor();
  await window.close();
  await other.end();
});

test('limits of plans are a table, and rules are sorted by their columns', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  for (const name of ['free', 'pro']) await server.admin('POST', 'tiers', { name, is_default: name === 'free' });
  await server.admin('POST', 'rules', { ...RULE, rule_id: 'zeta', unit: 'tokens', action: 'log_only' });
  for (let at = 0; at < 5; at += 1) await server.allow({ userId: 'ann', tokens: 1 });
  await window.signIn();
  await window.go('/rules/kept');
  await page.getByLabel('Limit of the plan pro').fill('40');
  await page.getByText('By plan: pro gets 40.').waitFor();
  await window.accessible('limits of plans');
  await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByRole('button', { name: 'Save, in force at once' }).click();
  await page.getByText('kept is saved and in force.').waitFor();
  expect(await server.admin('GET', 'rules/kept')).toMatchObject({ rule: { tier_limits: { pro: 40 } } });
  await page.getByLabel('Limit of the plan pro').fill('');
  await page.getByText('By plan: pro gets 40.').waitFor({ state: 'detached' });
  await page.getByRole('button', { name: 'Undo' }).click();
  await window.go('/rules');
  const table = page.getByRole('region', { name: 'Rules' });
  const first = () => table.locator('tbody tr').first();
  await first().getByText('1 plan: pro gets 40').waitFor();
  await first().getByText('requests', { exact: true }).waitFor();
  await table.locator('tr', { hasText: 'zeta' }).getByText('tokens', { exact: true }).waitFor();
  await table.locator('tr', { hasText: 'zeta' }).getByText('Only report').waitFor();
  const header = table.getByRole('columnheader', { name: 'Rule', exact: true });
  await header.getByRole('button').click();
  await header.getByRole('button').click();
  await first().getByRole('link', { name: 'zeta' }).waitFor();
  expect(await header.getAttribute('aria-sort')).toBe('descending');
  expect(new URL(page.url()).searchParams.get('sort')).toBe('-rule');
  await page.reload();
  await first().getByRole('link', { name: 'zeta' }).waitFor();
  await window.accessible('sorted rules');
  await table.getByRole('columnheader', { name: 'Refused' }).getByRole('button').click();
  await first().getByRole('link', { name: 'kept' }).waitFor();
  await window.close();
});
