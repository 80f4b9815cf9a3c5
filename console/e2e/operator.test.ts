// Tasks of an operator, each within a number of clicks.
import type { Browser, Locator } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

const RULE = { rule_id: 'per-user', identifier_type: 'user_id', limit: 5, window: '1h', algorithm: 'sliding_window_log', applies_to: { endpoints: ['/v1/*'] } };
const WATCHED = { ...RULE, rule_id: 'half', limit: 2, action: 'log_only' };
/** A name that would be markup, if anybody took it for that. */
const MARKUP = '<img src=x onerror="document.title=1">';

let server: Server;
let browser: Browser;
let window: Window;
let clicks = 0;

async function click(target: Locator) {
  clicks += 1;
  await target.click();
}

/** The page where everything begins, with no click made yet. */
async function begin(path = '/') {
  await window.go(path);
  await window.page.getByRole('heading', { level: 1 }).waitFor();
  clicks = 0;
}

async function send(userId: string, times: number) {
  for (let at = 0; at < times; at += 1) await server.allow({ userId, endpoint: '/v1/chat', method: 'POST', modelId: 'gpt4' });
}

const menu = (name: string) => window.page.getByRole('button', { name: `Actions for ${name}` }).filter({ visible: true }).first();
const item = (name: string) => window.page.getByRole('menuitem', { name });
const dialog = () => window.page.getByRole('dialog');

beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
  for (const rule of [RULE, WATCHED]) await server.admin('POST', 'rules', rule);
  await send('ann', 20);
  await send('bob', 8);
  await send(MARKUP, 7);
  window = await Window.open(browser, server);
  await window.signIn();
});

afterAll(async () => {
  await window.close();
  await browser.close();
  await server.end();
});

test('who is refused most right now, and why: 1 click', async () => {
  await begin();
  const most = window.page.locator('.card', { hasText: 'Most refused keys' });
  const first = most.getByRole('button').first();
  expect(await first.textContent()).toBe('ann');
  await click(first);
  await window.page.getByRole('menu', { name: 'ann' }).getByText('refused by per-user').waitFor();
  expect(clicks).toBeLessThanOrEqual(1);
  await window.accessible('an open menu');
});

test('why a client was refused: 2 clicks', async () => {
  await begin();
  await click(menu('ann'));
  await click(item('Open history'));
  await window.page.getByText(/^ann was refused by per-user: 5 of 5 used in 3600 s/).filter({ visible: true }).first().waitFor();
  expect(new URL(window.page.url()).searchParams.get('user_id')).toBe('ann');
  await begin();
  await click(menu('ann'));
  await click(item('Explain'));
  // The rule asks for an endpoint: it is that of the last decision.
  await dialog().getByText('would be refused now').waitFor();
  await dialog().getByText('POST /v1/chat gpt4').waitFor();
  await dialog().getByText('5 / 5').waitFor();
  expect(clicks).toBeLessThanOrEqual(2);
  await window.accessible('an explanation');
});

test('a node without rules and traffic shows how to start', async () => {
  const fresh = await Server.start();
  const other = await Window.open(browser, fresh);
  await other.signIn();
  await other.page.getByText('Waiting for the first decision.').waitFor();
  await other.accessible('the first steps');
  await fresh.allow({ userId: 'ann', modelId: 'gpt4' });
  await other.page.getByText('It arrived').waitFor();
  await other.page.getByText('Time to decide').waitFor();
  await other.page.locator('.steps').getByRole('link', { name: 'New rule' }).click();
  await other.heading('New rule');
  await other.close();
  await fresh.end();
});

test('which limits a client will hit next: 2 clicks', async () => {
  await begin();
  await click(menu('bob'));
  await click(item('Open client'));
  const limits = window.page.locator('.limits li');
  await limits.first().getByText('5 / 5').waitFor();
  expect(await limits.first().textContent()).toContain('met by POST /v1/chat');
  await window.page.getByText('would be refused now').waitFor();
  await window.page.getByText('bob was refused by per-user').first().waitFor();
  expect(clicks).toBeLessThanOrEqual(2);
  await window.accessible('a client');
});

test('a client is blocked for an hour in 3 clicks, and that is undone', async () => {
  await begin('/audit?kind=decisions&result=denied');
  await click(menu('bob'));
  await click(item('Block'));
  const block = dialog().getByRole('button', { name: 'Block' });
  expect(await block.isDisabled()).toBe(true);
  await window.page.keyboard.type('abuse report 4711');
  expect(await dialog().getByLabel('Ends').inputValue()).toBe('1');
  await window.accessible('the block');
  await click(block);
  await window.page.getByText('bob is on the deny list.').waitFor();
  expect(clicks).toBeLessThanOrEqual(3);
  const entry = await server.admin<{ reason: string; expires_at: string }>('GET', 'blacklist/user_id%3Abob');
  expect(entry.reason).toBe('abuse report 4711');
  expect(Math.abs(Date.parse(entry.expires_at) - Date.now() - 3_600_000)).toBeLessThan(300_000);
  await window.page.getByRole('button', { name: 'Undo: bob is on the deny list.' }).click();
  await window.page.getByText('Undone.').waitFor();
  await expect(server.admin('GET', 'blacklist/user_id%3Abob')).rejects.toThrow('404');
});

test('1,000 more until tomorrow, on the rule that refuses: 3 clicks', async () => {
  await begin();
  await click(menu('ann'));
  await click(item('Give extra quota'));
  expect(await dialog().getByLabel('Rule').inputValue()).toBe('per-user');
  await window.page.keyboard.press('Control+A');
  await window.page.keyboard.type('1000');
  await click(dialog().getByRole('button', { name: 'Give' }));
  await window.page.getByText('ann has 1,000 more on per-user.').waitFor();
  expect(clicks).toBeLessThanOrEqual(4);
  expect(await server.allow({ userId: 'ann', endpoint: '/v1/chat' })).toMatchObject({ allowed: true });
  const { items } = await server.admin<{ items: { extra: number; expires_at: string }[] }>('GET', 'grants');
  expect(items).toMatchObject([{ extra: 1000 }]);
  expect(Math.abs(Date.parse(items[0]?.expires_at ?? '') - Date.now() - 86_400_000)).toBeLessThan(300_000);
  await window.page.getByRole('button', { name: /^Undo: ann has/ }).click();
  await window.page.getByText('Undone.').waitFor();
  expect(await server.allow({ userId: 'ann', endpoint: '/v1/chat' })).toMatchObject({ allowed: false });
});

test('a counter is reset where it refuses', async () => {
  await begin();
  await click(menu('bob'));
  await click(item('Reset counter'));
  await click(dialog().getByRole('button', { name: 'Reset' }));
  await window.page.getByText('Reset: per-user.').waitFor();
  expect(clicks).toBeLessThanOrEqual(3);
  expect(await server.allow({ userId: 'bob', endpoint: '/v1/chat' })).toMatchObject({ allowed: true });
});

test('what a rule refused in the last day: 2 clicks', async () => {
  await begin('/rules');
  await click(window.page.getByRole('link', { name: 'per-user' }));
  await click(window.page.getByRole('link', { name: 'What it refused' }));
  await window.page.getByText(/was refused by per-user/).filter({ visible: true }).first().waitFor();
  expect(Object.fromEntries(new URL(window.page.url()).searchParams)).toMatchObject({ rule_id: 'per-user', from: '24h' });
  expect(clicks).toBeLessThanOrEqual(2);
});

test('whether a rule on trial is safe to enforce: 2 clicks', async () => {
  await begin('/rules');
  await window.page.getByTitle('Would have been refused').waitFor();
  await click(window.page.getByRole('link', { name: 'half' }));
  await click(window.page.getByRole('link', { name: 'What it would refuse' }));
  await window.page.getByText(/would have been refused by half/).filter({ visible: true }).first().waitFor();
  expect(clicks).toBeLessThanOrEqual(2);
});

test('what happened at a time is on the overview: 0 clicks', async () => {
  await begin();
  const timeline = window.page.locator('.card', { hasText: 'Timeline' });
  await timeline.getByText('rule.create per-user').waitFor();
  expect(clicks).toBe(0);
});

test('who changed a rule, and undo it: 3 clicks', async () => {
  await server.admin('PUT', 'rules/per-user', { ...RULE, limit: 6 });
  await begin();
  await click(window.page.getByRole('link', { name: 'rule.update per-user' }).first());
  await window.page.getByText('first').first().waitFor();
  await click(window.page.getByRole('button', { name: 'Roll back to version 1' }));
  await click(dialog().getByRole('button', { name: 'Roll back' }));
  await window.page.getByText('per-user is as it was in version 1.').waitFor();
  expect(clicks).toBeLessThanOrEqual(3);
  expect(await server.admin('GET', 'rules/per-user')).toMatchObject({ rule: { limit: 5 } });
});

test('refusals arrive live, can be filtered and paused', async () => {
  await begin('/audit?kind=decisions&result=denied&user_id=carl');
  await click(window.page.getByRole('switch', { name: 'Live' }));
  await window.page.getByRole('status').getByText('Live').waitFor();
  await window.accessible('the live feed');
  await send('dave', 7);
  await send('carl', 6);
  await window.page.getByText(/^carl was refused by per-user/).filter({ visible: true }).first().waitFor();
  expect(await window.page.getByText('dave').count()).toBe(0);
  await window.page.getByRole('button', { name: 'Pause' }).click();
  await send('carl', 1);
  await window.page.getByText('Paused, 1 new record').waitFor();
  expect(await window.page.getByText(/^carl was refused/).filter({ visible: true }).count()).toBe(1);
  await window.page.getByRole('button', { name: 'Resume' }).click();
  await expect.poll(() => window.page.getByText(/^carl was refused/).filter({ visible: true }).count()).toBe(2);
});

test('a menu is used by keyboard alone, and gives the focus back', async () => {
  const { page } = window;
  await begin('/audit?kind=decisions&user_id=ann');
  await menu('ann').focus();
  await page.keyboard.press('Enter');
  await page.getByRole('menu', { name: 'ann' }).waitFor();
  // The focus follows the menu's opening.
  await expect.poll(() => page.evaluate(() => document.activeElement?.getAttribute('role'))).toBe('menuitem');
  await page.keyboard.press('ArrowDown');
  await expect.poll(() => item('Open client').evaluate((element) => element === document.activeElement)).toBe(true);
  await page.keyboard.press('End');
  await expect.poll(() => item('Block').evaluate((element) => element === document.activeElement)).toBe(true);
  await page.keyboard.press('Escape');
  await page.getByRole('menu', { name: 'ann' }).waitFor({ state: 'hidden' });
  await expect.poll(() => menu('ann').evaluate((element) => element === document.activeElement)).toBe(true);
});

test('what a client sends is text, never markup', async () => {
  await begin();
  await menu(MARKUP).waitFor();
  for (const path of ['/', '/audit?kind=decisions', `/clients?type=user_id&id=${encodeURIComponent(MARKUP)}`]) {
    await begin(path);
    await window.page.getByText(MARKUP, { exact: false }).filter({ visible: true }).first().waitFor();
    expect(await window.page.locator('main img').count(), path).toBe(0);
    expect(await window.page.title(), path).not.toBe('1');
  }
});
