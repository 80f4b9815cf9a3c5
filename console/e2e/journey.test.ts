// The road of an operator: sign in, make a rule, see it enforced, meet a colleague's change, go back, block somebody.
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

let server: Server;
let browser: Browser;
let window: Window;

beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
  window = await Window.open(browser, server);
});

afterAll(async () => {
  await window.close();
  await browser.close();
  await server.end();
});

test('a wrong token does not sign in, a right one does, and a reload keeps it', async () => {
  const { page } = window;
  await window.go('/');
  await page.getByLabel('Admin token').fill('wrong-wrong-wrong-wrong-wrong');
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByText('This token is not known, or has ended.').waitFor();
  await window.signIn();
  await window.heading('Overview');
  expect(await page.evaluate(() => document.cookie)).toBe('');
  await page.reload();
  await window.heading('Overview');
  await page.getByText('Live', { exact: true }).waitFor();
});

test('a rule is made in the form, and described in plain words before it is saved', async () => {
  const { page } = window;
  await page.getByRole('link', { name: 'Rules' }).click();
  await page.getByText('No rules yet').waitFor();
  await page.getByRole('link', { name: 'New rule', exact: true }).click();
  // No error before the first keystroke.
  await page.getByText('Give the rule an id. It is checked while you type.').waitFor();
  expect(await page.locator('[aria-invalid], .fault').count()).toBe(0);
  expect(await page.getByRole('button', { name: 'Review and save' }).isDisabled()).toBe(true);
  await page.getByLabel('Name for people').fill('x');
  await page.getByText('Give the rule an id, such as per-user.').first().waitFor();
  await page.getByLabel('Name for people').fill('');
  await page.getByLabel('Id', { exact: true }).fill('per-user');
  await page.getByLabel('How many').fill('5');
  await page.getByLabel('Window', { exact: true }).fill('1x');
  await page.getByText('Write it as 500ms, 5s, 1m, 1h, 1d or 1w.').first().waitFor();
  await page.getByLabel('Window', { exact: true }).fill('1h');
  await page.getByLabel('Algorithm').selectOption('sliding_window_log');
  await page.getByLabel('Models').fill('gpt4');
  await page.getByText('Each user may make 5 requests per hour to model gpt4.').waitFor();
  // The same rule as JSON, and back.
  await page.getByRole('button', { name: 'JSON' }).click();
  const json = page.getByLabel('The rule as JSON');
  expect(JSON.parse(await json.inputValue())).toMatchObject({ rule_id: 'per-user', limit: 5, window: '1h', applies_to: { models: ['gpt4'] } });
  await json.fill('{');
  await page.getByText('The JSON cannot be read.').waitFor();
  await json.fill('{"rule_id": "per-user", "identifier_type": "user_id", "limit": 5, "window": "1h", "algorithm": "sliding_window_log", "applies_to": {"models": ["gpt4"]}, "colour": "red"}');
  // What only the server knows comes while one types.
  await page.getByText('is not a known field', { exact: false }).first().waitFor();
  await json.fill('{"rule_id": "per-user", "identifier_type": "user_id", "limit": 5, "window": "1h", "algorithm": "sliding_window_log", "applies_to": {"models": ["gpt4"]}}');
  await page.getByText('The server would take it').waitFor();
  await page.getByRole('button', { name: 'Form' }).click();
  await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByRole('button', { name: 'Save, in force at once' }).click();
  await page.getByText('per-user is saved and in force.').waitFor();
  await window.heading('per-user');
});

test('the playground shows it enforced', async () => {
  const { page } = window;
  await page.getByRole('link', { name: 'Playground' }).click();
  await page.getByLabel('User', { exact: true }).fill('ann');
  await page.getByLabel('Model', { exact: true }).fill('gpt4');
  await page.getByRole('button', { name: 'Check' }).click();
  await page.getByText('ALLOWED').waitFor();
  await page.getByText('1 / 5').waitFor();
  expect(await page.locator('.curl code').textContent()).toContain(`curl -s ${server.url}/rate-limit/allow`);
  await page.getByText('ratelimit-policy', { exact: true }).waitFor();
  await page.getByRole('button', { name: 'Send 50' }).click();
  await page.getByText('BLOCKED').waitFor();
  await page.getByText('5 allowed, 46 refused').waitFor();
  await page.getByText('5 / 5').waitFor();
  await page.getByText('HIT_PER_USER_LIMIT', { exact: false }).first().waitFor();
  expect(await server.allow({ userId: 'ann', modelId: 'gpt4' })).toMatchObject({ allowed: false });
});

test('a client is found, reset, and may go on', async () => {
  const { page } = window;
  await page.getByRole('link', { name: 'Clients' }).click();
  await page.getByLabel('Name').fill('ann');
  await page.getByLabel('Model, if any').fill('gpt4');
  await page.getByRole('button', { name: 'Find' }).click();
  await page.getByText('5 / 5').waitFor();
  await page.getByRole('button', { name: 'Reset' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Reset' }).click();
  await page.getByText('Reset: per-user.').waitFor();
  await page.getByText('0 / 5').waitFor();
  expect(await server.allow({ userId: 'ann', modelId: 'gpt4' })).toMatchObject({ allowed: true });
});

test('a change in a second window is a conflict, with a way out', async () => {
  const { page } = window;
  const other = await Window.open(browser, server);
  await other.signIn();
  await other.go('/rules/per-user');
  await window.go('/rules/per-user');
  await page.getByLabel('How many').fill('7');
  await page.getByText('Each user may make 7 requests').first().waitFor();
  await other.page.getByLabel('How many').fill('9');
  await other.page.getByRole('button', { name: 'Review and save' }).click();
  await other.page.getByRole('button', { name: 'Save, in force at once' }).click();
  await other.page.getByText('per-user is saved and in force.').waitFor();
  await other.close();
  const conflict = page.getByRole('alert', { name: 'Conflict' });
  await conflict.waitFor();
  expect(await conflict.textContent()).toMatch(/"limit": 9.*"limit": 7/s);
  await conflict.getByRole('button', { name: 'Put mine on top' }).click();
  await page.getByRole('button', { name: 'Save, in force at once' }).click();
  await page.getByText('per-user is saved and in force.').waitFor();
  expect(await server.admin('GET', 'rules/per-user')).toMatchObject({ version: 3, rule: { limit: 7 } });
});

test('a change that nobody heard of is refused by the server, and shown', async () => {
  const { page } = window;
  // Nothing is heard of changes: as on a network that loses words.
  await page.route('**/events**', (route) => route.abort());
  await window.go('/rules/per-user');
  await page.getByLabel('How many').fill('8');
  await server.admin('PUT', 'rules/per-user', { rule_id: 'per-user', identifier_type: 'user_id', limit: 11, window: '1h', algorithm: 'sliding_window_log' });
  await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByRole('button', { name: 'Save, in force at once' }).click();
  const conflict = page.getByRole('alert', { name: 'Conflict' });
  await conflict.waitFor();
  await conflict.getByRole('button', { name: 'Take theirs' }).click();
  await page.getByText('Each user may make 11 requests').first().waitFor();
  await page.unroute('**/events**');
  expect(await server.admin('GET', 'rules/per-user')).toMatchObject({ version: 4, rule: { limit: 11 } });
});

test('a rule is rolled back', async () => {
  const { page } = window;
  await window.go('/rules/per-user?tab=versions');
  await page.getByRole('button', { name: 'Roll back to version 1' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Roll back' }).click();
  await page.getByText('per-user is as it was in version 1.').waitFor();
  expect(await server.admin('GET', 'rules/per-user')).toMatchObject({ version: 5, rule: { limit: 5 } });
});

test('a rule is switched off and on in the list', async () => {
  const { page } = window;
  await window.go('/rules');
  const toggle = page.getByRole('switch', { name: 'per-user is on' });
  await toggle.click();
  const dialog = page.getByRole('dialog');
  await dialog.getByText('It refused 47 requests').waitFor();
  await dialog.getByRole('button', { name: 'Turn off' }).click();
  await page.getByText('per-user is off.').waitFor();
  expect(await server.admin('GET', 'rules/per-user')).toMatchObject({ status: 'inactive' });
  await toggle.click();
  await page.getByText('per-user is on.').waitFor();
  expect(await server.admin('GET', 'rules/per-user')).toMatchObject({ status: 'active' });
});

test('an address is blocked, and the audit log knows who did it', async () => {
  const { page } = window;
  await page.getByRole('link', { name: 'Lists' }).click();
  await page.getByRole('button', { name: 'Block somebody' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Name or address').fill('203.0.113.0/33');
  expect(await dialog.getByRole('button', { name: 'Block' }).isDisabled()).toBe(true);
  await dialog.getByLabel('Reason').fill('abuse report 4711');
  await dialog.getByRole('button', { name: 'Block' }).click();
  await dialog.getByRole('alert').waitFor();
  await dialog.getByLabel('Name or address').fill('203.0.113.0/24');
  await dialog.getByLabel('Ends').selectOption('24');
  await dialog.getByRole('button', { name: 'Block' }).click();
  await page.getByText('203.0.113.0/24 is on the deny list.').waitFor();
  await page.getByText('abuse report 4711').filter({ visible: true }).waitFor();
  expect(await server.allow({ userId: 'bob', ip: '203.0.113.7' })).toMatchObject({ allowed: false, reason: 'DENY_LISTED' });
  await page.getByRole('link', { name: 'Audit' }).click();
  await page.getByLabel('Id', { exact: true }).fill('ip:203.0.113.0/24');
  await page.getByRole('button', { name: /Details of .* ip:203\.0\.113\.0\/24/ }).click();
  await page.getByRole('dialog').getByText('abuse report 4711').waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export CSV' }).click()]);
  expect(download.suggestedFilename()).toBe('tollgate-changes.csv');
  await page.getByRole('button', { name: 'Decisions' }).click();
  await page.getByText('bob was refused: it is on the deny list').filter({ visible: true }).first().waitFor();
});

test('decisions are found by a link, and a range that cannot be is explained', async () => {
  const { page } = window;
  await window.go('/audit?kind=decisions&ip=203.0.113.7&from=15m&result=denied');
  await page.getByText('bob was refused: it is on the deny list').filter({ visible: true }).first().waitFor();
  expect(await page.getByLabel('IP address').inputValue()).toBe('203.0.113.7');
  expect(await page.getByLabel('Time', { exact: true }).inputValue()).toBe('15m');
  await page.getByLabel('User', { exact: true }).fill('nobody');
  await page.getByText('Nothing fits these filters.').waitFor();
  expect(new URL(page.url()).searchParams.get('user_id')).toBe('nobody');
  await window.go('/audit?kind=decisions&from=2999-01-01T00:00:00Z');
  await page.getByText('is in the future', { exact: false }).first().waitFor();
});

test('plans, tokens and enforcement', async () => {
  const { page } = window;
  await page.getByRole('link', { name: 'Plans' }).click();
  await page.getByRole('button', { name: 'New plan' }).click();
  await page.getByRole('dialog').getByLabel('Name').fill('pro');
  await page.getByRole('dialog').getByRole('button', { name: 'Save' }).click();
  await page.getByText('The plan pro is saved.').waitFor();
  await window.go('/clients?type=tenant_id&id=acme');
  await page.getByLabel('This client has').selectOption('pro');
  await page.getByText('The plan is changed.').waitFor();
  expect(await server.admin('GET', 'client-tiers/tenant_id%3Aacme')).toMatchObject({ tier: 'pro' });
  await page.getByRole('link', { name: 'Tokens' }).click();
  await page.getByRole('button', { name: 'New token' }).click();
  await page.getByRole('dialog').getByLabel('Whose').fill('dashboard');
  await page.getByRole('dialog').getByRole('button', { name: 'Make' }).click();
  const secret = (await page.locator('.secret code').textContent()) ?? '';
  expect(await server.admin('GET', 'whoami', undefined, secret)).toMatchObject({ name: 'dashboard', role: 'viewer' });
  await page.getByRole('button', { name: 'I have it' }).click();
  await page.getByRole('button', { name: 'Revoke dashboard' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
  await page.getByText('The token of dashboard has ended.').waitFor();
  await expect(server.admin('GET', 'whoami', undefined, secret)).rejects.toThrow('401');
  await page.getByRole('link', { name: 'Nodes' }).click();
  await page.getByLabel('Enforcement').selectOption('shadow');
  await page.getByRole('dialog').getByRole('button', { name: 'Switch' }).click();
  await page.getByText('Shadow mode: nothing is refused.').waitFor();
  await page.getByLabel('Enforcement').selectOption('on');
  await page.getByRole('dialog').getByRole('button', { name: 'Switch' }).click();
  await page.getByText('Shadow mode: nothing is refused.').waitFor({ state: 'detached' });
});

test('signing out ends it', async () => {
  const { page } = window;
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByLabel('Admin token').waitFor();
  await page.reload();
  await page.getByLabel('Admin token').waitFor();
});
