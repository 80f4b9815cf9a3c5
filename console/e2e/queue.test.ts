// The queue of a gateway: what waits, dead letters that are sent again, requests that are deleted.
import { createServer, type Server as HttpServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

/** One request an hour for each job: the others wait. */
const SLOW = { rule_id: 'slow', applies_to: { endpoints: ['/slow/{job}'] }, key_by: ['job'], limit: 1, window: '1h', algorithm: 'token_bucket', action: 'queue' };
/** Ten a second: what waits is sent soon. */
const FAST = { ...SLOW, rule_id: 'fast', applies_to: { endpoints: ['/fast/{job}'] }, limit: 10, window: '1s', burst: 1 };
/** What a client may send as a path, and must stay text. */
const MARKUP = '/slow/%3Cimg%20src=x%3E?q=<img src=x onerror="document.title=1">';

const folder = mkdtempSync(join(tmpdir(), 'tollgate-queue-'));
let upstream: HttpServer;
let status = 200;
let server: Server;
let browser: Browser;
let window: Window;

async function post(path: string): Promise<number> {
  const response = await fetch(`${server.gatewayUrl}${path}`, { method: 'POST', body: 'x' });
  return response.status;
}

beforeAll(async () => {
  upstream = createServer((_, response) => response.writeHead(status).end('answer'));
  upstream.listen(0, '127.0.0.1');
  await once(upstream, 'listening');
  const config = join(folder, 'tollgate.yaml');
  writeFileSync(config, 'queue: {max_attempts: 1}\n');
  server = await Server.gateway(`http://127.0.0.1:${String((upstream.address() as AddressInfo).port)}`, ['--config', config]);
  for (const rule of [SLOW, FAST]) await server.admin('POST', 'rules', rule);
  browser = await launch();
  window = await Window.open(browser, server);
  await window.signIn();
});

afterAll(async () => {
  await window.close();
  await browser.close();
  await server.end();
  upstream.close();
  rmSync(folder, { recursive: true, force: true });
});

test('what waits is listed as text, and is deleted after a question', async () => {
  const { page } = window;
  expect([await post('/slow/1'), await post('/slow/1'), await post(MARKUP), await post(MARKUP)]).toEqual([200, 202, 200, 202]);
  await page.getByRole('link', { name: 'Queue' }).click();
  await page.getByText('POST /slow/1', { exact: true }).waitFor();
  await page.getByText('img%20src', { exact: false }).or(page.getByText('<img', { exact: false })).first().waitFor();
  expect(await page.locator('main img').count()).toBe(0);
  await window.accessible('the queue');
  await page.getByRole('button', { name: 'Delete POST /slow/1', exact: true }).click();
  await page.getByRole('dialog').getByText('This cannot be undone.').waitFor();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByText('POST /slow/1 is deleted.').waitFor();
  expect(await server.admin('GET', 'queue')).toMatchObject({ waiting: 1 });
});

test('a dead letter is found in one click, and sent again', async () => {
  const { page } = window;
  status = 503;
  await expect.poll(async () => (await post('/fast/1')) === 202, { timeout: 20_000, interval: 20 }).toBe(true);
  await window.go('/queue');
  await page.getByRole('button', { name: 'Show' }).click();
  expect(new URL(page.url()).searchParams.get('state')).toBe('dead');
  await page.getByText('dead', { exact: true }).first().waitFor();
  status = 200;
  await page.getByRole('button', { name: 'Retry POST /fast/1' }).first().click();
  await page.getByText('POST /fast/1 waits again.').waitFor();
  await page.getByRole('button', { name: 'Answered' }).click();
  await page.getByText('answered', { exact: true }).first().waitFor();
});

test('a node without a queue says so, and viewers do not see the page', async () => {
  const plain = await Server.start();
  const other = await Window.open(browser, plain);
  await other.signIn();
  await other.go('/queue');
  await other.page.getByText('This node has no queue').waitFor();
  await other.accessible('no queue');
  await other.close();
  const viewer = await Window.open(browser, plain);
  await viewer.signIn(await plain.newToken('viewer'));
  await viewer.heading('Overview');
  expect(await viewer.page.getByRole('link', { name: 'Queue' }).count()).toBe(0);
  await viewer.close();
  await plain.end();
});
