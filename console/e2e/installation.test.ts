// The overview and the nodes are of the whole installation; one node can be chosen, and one that disappears is missed.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

const folder = mkdtempSync(join(tmpdir(), 'tollgate-installation-'));
const socket = join(folder, 'redis.sock');
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

test('two nodes are one installation, each can be looked at alone, and one that is killed is shown as gone', async () => {
  const shared = ['--redis', `unix://${socket}`];
  const one = await Server.startWith(shared);
  const data = await Server.startWith([...shared, '--role', 'data']);
  await one.admin('POST', 'rules', { rule_id: 'per-user', identifier_type: 'user_id', limit: 1_000, window: '365d' });
  for (let at = 0; at < 30; at += 1) {
    await one.allow({ userId: 'ann' });
    await data.allow({ userId: 'ben' });
    await data.allow({ userId: 'ben' });
  }
  const window = await Window.open(browser, one);
  const { page } = window;
  await window.signIn(one.token);
  const filter = page.getByLabel('What was decided by');
  await filter.getByText('all 2 nodes').waitFor({ state: 'attached' });
  const decisions = page.getByRole('slider', { name: /^Decisions per second: 90 allowed/ });
  await decisions.waitFor({ timeout: 20_000 });
  // The other node alone.
  const { node: own } = await one.admin<{ node: string }>('GET', 'node');
  const { items } = await one.admin<{ items: { node: string }[] }>('GET', 'nodes');
  const other = items.find(({ node }) => node !== own)?.node ?? '';
  await filter.selectOption(other);
  await page.getByRole('slider', { name: /^Decisions per second: 60 allowed/ }).waitFor({ timeout: 20_000 });
  expect(new URL(page.url()).searchParams.get('node')).toBe(other);
  await filter.selectOption('');
  await decisions.waitFor();
  await window.accessible('the overview of two nodes');
  await data.stop();
  await page.getByText('1 gone').waitFor({ timeout: 10_000 });
  await window.go('/nodes');
  await page.getByText(/^disappeared/).waitFor();
  await page.getByText('1 node, 1 gone').waitFor();
  await window.accessible('a node that disappeared');
  // What it counted is still part of the overview.
  await window.go('/');
  await decisions.waitFor({ timeout: 20_000 });
  await window.close();
  await Promise.all([data.end(), one.end()]);
});

test('latency is a heat map that can be read by keyboard and zoomed', async () => {
  const server = await Server.start();
  await server.admin('POST', 'rules', { rule_id: 'per-user', identifier_type: 'user_id', limit: 5, window: '365d' });
  for (let at = 0; at < 20; at += 1) await server.allow({ userId: 'ann' });
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  await page.getByRole('button', { name: 'Heat map' }).click();
  const heat = page.getByRole('slider', { name: /^Calls by the time that they took: / });
  await heat.waitFor({ timeout: 20_000 });
  expect(new URL(page.url()).searchParams.get('latency')).toBe('heat');
  expect(await heat.getAttribute('aria-valuetext')).toMatch(/calls \(.*\/s\)/);
  await heat.focus();
  const before = await heat.getAttribute('aria-valuenow');
  await page.keyboard.press('ArrowLeft');
  expect(await heat.getAttribute('aria-valuenow')).not.toBe(before);
  await window.accessible('a heat map');
  const box = await heat.boundingBox();
  if (!box) throw new Error('the heat map has no place');
  await page.mouse.move(box.x + box.width * 0.6, box.y + 80);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.95, box.y + 90, { steps: 4 });
  await page.mouse.up();
  await page.getByRole('status').getByText(/^Showing/).waitFor();
  await page.getByRole('button', { name: /^Back to the last/ }).click();
  await page.getByRole('button', { name: 'Lines' }).click();
  await page.getByRole('slider', { name: /^Time to decide/ }).waitFor();
  await window.close();
  await server.end();
});
