// What an operator must see is on every page.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

const folder = mkdtempSync(join(tmpdir(), 'tollgate-incidents-'));
const socket = join(folder, 'redis.sock');
const BANNER = 'Nodes do not agree about their rules.';
let redis: ChildProcess;
let browser: Browser;

beforeAll(async () => {
  redis = spawn('redis-server', ['--port', '0', '--unixsocket', socket, '--save', '', '--dir', folder], { stdio: 'ignore' });
  await vi.waitUntil(() => existsSync(socket), { timeout: 20_000 });
  browser = await launch();
});

afterAll(async () => {
  await browser.close();
  redis.kill('SIGKILL');
  await once(redis, 'exit');
  rmSync(folder, { recursive: true, force: true });
});

test('nodes with rules of different owners are reported, until one is left', async () => {
  const shared = ['--redis', `unix://${socket}`];
  const one = await Server.startWith(shared);
  const window = await Window.open(browser, one);
  await window.signIn(one.token);
  expect(await window.page.getByText(BANNER).count()).toBe(0);
  const other = await Server.startWith(shared);
  await window.page.getByRole('alert').getByText(BANNER).waitFor();
  await window.page.getByText('--role data').first().waitFor();
  await window.page.getByRole('link', { name: 'Nodes' }).click();
  await window.page.getByText('has the rules of another owner').waitFor();
  await window.page.getByText('other rules', { exact: true }).waitFor();
  await window.accessible('nodes that disagree');
  await window.page.getByRole('link', { name: 'Audit' }).click();
  await window.page.getByText(BANNER).waitFor();
  await other.end();
  await window.page.getByText(BANNER).waitFor({ state: 'detached' });
  await window.close();
  await one.end();
});

test('a node that is behind is marked, with what to do: 0 clicks', async () => {
  const server = await Server.start();
  await server.admin('POST', 'rules', { rule_id: 'per-user', identifier_type: 'user_id', limit: 100, window: '1h' });
  await server.allow({ userId: 'ann' });
  const window = await Window.open(browser, server);
  const { page } = window;
  // A node that does not follow cannot be made at will: the answer has another one added, and then it follows.
  let revision = 4;
  await page.route('**/rate-limits/nodes', async (route) => {
    const response = await route.fetch();
    const body = (await response.json()) as { items: { node: string; rules: { revision: number } }[] };
    const [own] = body.items;
    const items = own ? [{ ...own, rules: { ...own.rules, revision: 7 } }, { ...own, node: 'node-b', rules: { ...own.rules, revision } }] : [];
    await route.fulfill({ response, json: { ...body, items } });
  });
  await window.signIn();
  await page.getByText('1 of 2 behind').waitFor();
  await window.go('/nodes');
  await page.getByText('node-b (revision 4) is behind revision 7.').waitFor();
  await page.getByText('read its log').waitFor();
  await page.getByText('behind', { exact: true }).waitFor();
  await window.accessible('a node that is behind');
  revision = 7;
  await page.getByText('All 2 nodes enforce revision 7.').waitFor();
  expect(await page.getByText('behind', { exact: true }).count()).toBe(0);
  await window.close();
  await server.end();
});

test('a lost store is a banner with the next step, and stays on the timeline', async () => {
  const node = await Server.startWith(['--redis', `unix://${socket}`]);
  await node.admin('POST', 'rules', { rule_id: 'per-user', identifier_type: 'user_id', limit: 100, window: '1h' });
  await node.allow({ userId: 'ann' });
  const window = await Window.open(browser, node);
  await window.signIn(node.token);
  redis.kill('SIGSTOP');
  const alert = window.page.getByRole('alert').getByText('A shared store does not answer.');
  await vi.waitUntil(async () => {
    await node.allow({ userId: 'ann' });
    return (await alert.count()) > 0;
  }, { timeout: 30_000, interval: 300 });
  await window.page.getByText('Check that Redis runs').waitFor();
  await window.accessible('an incident');
  redis.kill('SIGCONT');
  await vi.waitUntil(async () => {
    await node.allow({ userId: 'ann' });
    return (await alert.count()) === 0;
  }, { timeout: 30_000, interval: 300 });
  const timeline = window.page.locator('.card', { hasText: 'Timeline' });
  await timeline.getByText('A shared store does not answer.').waitFor();
  await timeline.getByText('over', { exact: true }).first().waitFor();
  await window.close();
  await node.end();
});
