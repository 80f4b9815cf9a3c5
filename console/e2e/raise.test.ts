// From a refusal to the rule that made it: the limit is in focus, and what changes is shown before it is saved.
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

const RULE = { rule_id: 'per-user', identifier_type: 'user_id', limits: [{ limit: 1000, window: '1h' }, { limit: 3, calendar: 'day' }] };
const MONEY = { rule_id: 'team-budget', identifier_type: 'tenant_id', unit: 'money', currency: 'USD', limit: '5.00', calendar: 'month' };

let server: Server;
let browser: Browser;
let window: Window;

beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
  for (const rule of [RULE, MONEY]) await server.admin('POST', 'rules', rule);
  for (let at = 0; at < 6; at += 1) await server.allow({ userId: 'ann', endpoint: '/v1/chat', method: 'POST' });
  for (let at = 0; at < 3; at += 1) await server.allow({ tenantId: 'acme', money: { currency: 'USD', amount: '2.25' } });
  window = await Window.open(browser, server);
  await window.signIn();
});

afterAll(async () => {
  await window.close();
  await browser.close();
  await server.end();
});

const focused = () => window.page.evaluate(() => document.activeElement?.getAttribute('data-part'));
const limitsOf = async (id: string) => (await server.admin<{ rule: { limits?: { limit: number }[] } }>('GET', `rules/${id}`)).rule.limits?.map(({ limit }) => limit);

test('the limit that refused is raised from a decision, with before and after', async () => {
  const { page } = window;
  await window.go('/audit?kind=decisions&result=denied&user_id=ann');
  await page.getByRole('button', { name: 'Actions for ann' }).filter({ visible: true }).first().click();
  await page.getByRole('menuitem', { name: 'Raise this limit' }).click();
  await window.heading('per-user');
  await page.getByText('Raise this limit: 3 requests per calendar day (UTC).').waitFor();
  await expect.poll(focused).toBe('limit-1');
  const validated = page.waitForResponse((answer) => answer.url().includes('dry_run') && /"limit":\s*50\b/.test(answer.request().postData() ?? ''));
  await page.keyboard.type('50');
  const side = page.getByRole('list', { name: 'Before and after' });
  await side.getByText('3 requests per calendar day (UTC)', { exact: true }).waitFor();
  await side.getByText('50 requests per calendar day (UTC)').waitFor();
  // A button that becomes enabled while it is checked has no contrast.
  await validated;
  await page.getByRole('button', { name: 'Review and save', disabled: false }).waitFor();
  await window.accessible('a raised limit');
  expect(await limitsOf('per-user')).toEqual([1000, 3]);
  await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByRole('dialog').getByText('50 requests per calendar day (UTC)').first().waitFor();
  await page.getByRole('dialog').getByRole('button', { name: 'Save, in force at once' }).click();
  await expect.poll(() => limitsOf('per-user')).toEqual([1000, 50]);
});

test('a rule for one client begins with the rule that refused it', async () => {
  const { page } = window;
  await window.go('/audit?kind=decisions&result=denied&user_id=ann');
  await page.getByRole('button', { name: 'Actions for ann' }).filter({ visible: true }).first().click();
  await page.getByRole('menuitem', { name: 'Add a rule for it' }).click();
  await window.heading('New rule');
  await page.getByText('it is used in place of per-user').waitFor();
  await expect.poll(focused).toBe('limit-0');
  expect(await page.getByLabel('Users').inputValue()).toBe('ann');
  await page.keyboard.type('5000');
  await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Save, in force at once' }).click();
  await window.heading('per-user-ann');
  expect(await limitsOf('per-user-ann')).toEqual([5000, 50]);
});

test('money has its currency on the page of a client, in decisions and in explanations', async () => {
  const { page } = window;
  await window.go('/clients?type=tenant_id&id=acme');
  await page.getByText('4.50 / 5.00 USD').first().waitFor();
  await page.getByText('4.50 of 5.00 USD used').first().waitFor();
  expect(await page.getByText('000000000').count()).toBe(0);
  await window.accessible('a client with a budget');
  await page.getByRole('link', { name: 'Raise this limit: team-budget' }).click();
  await page.getByText('Raise this limit: 5.00 USD per calendar month (UTC).').waitFor();
  await window.go('/audit?kind=decisions&tenant_id=acme');
  await page.getByText('4.50 of 5.00 USD used').filter({ visible: true }).first().waitFor();
  await page.getByRole('button', { name: 'Actions for acme' }).filter({ visible: true }).first().click();
  await page.getByRole('menuitem', { name: 'Explain' }).click();
  await page.getByRole('dialog').getByText('4.50 / 5.00 USD').waitFor();
});
