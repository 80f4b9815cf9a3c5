// Every page, light and dark, on a desk and on a telephone, with traffic.
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { test } from 'vitest';
import { launch, Window } from './browser';
import { seed, traffic } from './seed';
import { Server } from './server';

const FOLDER = join(import.meta.dirname, '../screenshots');
const SECONDS = Number(process.env['SECONDS'] ?? 45);
const ONLY = process.env['ONLY'];
const PAGES: [name: string, path: string][] = [
  ['overview', '/?by=tenant_id&from={start}'],
  ['overview-log', '/?minutes=5&by=rule_id&scale=log'],
  ['overview-reason', '/?minutes=5&by=reason&scale=full'],
  ['playground', '/playground'],
  ['rules', '/rules'],
  ['rule-new', '/rules/new'],
  ['rule', '/rules/tenant-hourly'],
  ['versions', '/rules/chat-per-user?tab=versions'],
  ['clients', '/clients?type=tenant_id&id=umbrella&model=gpt-4o'],
  ['keys', '/keys'],
  ['key', '/keys/{key}'],
  ['key-edit', '/keys/{key}?edit=budget'],
  ['key-new', '/keys/new'],
  ['key-revoke', '/keys'],
  ['lists', '/lists'],
  ['tiers', '/tiers'],
  ['queue', '/queue'],
  ['queue-dead', '/queue?state=dead'],
  ['audit', '/audit'],
  ['decisions', '/audit?kind=decisions'],
  ['nodes', '/nodes'],
  ['review', '/rules/tenant-hourly'],
  ['raise', '/rules/chat-tokens?raise=86400&for=acme'],
  ['conflict', '/rules/gpu-pool'],
  ['details', '/audit?entry_id=chat-per-user'],
  ['tokens', '/tokens'],
];
const SIZES = [
  { name: 'desk', width: 1440, height: 900 },
  { name: 'phone', width: 390, height: 844 },
];

const CONFIG = join(FOLDER, 'tollgate.yaml');

/** Requests that wait, and some that failed. */
async function queue(server: Server) {
  const rule = { key_by: ['job'], algorithm: 'token_bucket', action: 'queue' };
  await server.admin('POST', 'rules', { ...rule, rule_id: 'nightly-exports', name: 'One export of a report at a time', applies_to: { endpoints: ['/exports/{job}'] }, limit: 1, window: '1h' });
  await server.admin('POST', 'rules', { ...rule, rule_id: 'webhooks', name: 'Evenly spaced', applies_to: { endpoints: ['/hooks/{job}'] }, limit: 5, window: '1s', burst: 1 });
  const paths = [...['sales', 'stock', 'sales', 'sales', 'people', 'stock', 'people'].map((one) => `/exports/${one}`), ...Array.from({ length: 6 }, () => '/hooks/broken')];
  for (const path of paths) await fetch(`${server.gatewayUrl}${path}`, { method: 'POST', body: '{}' });
}

test('pictures', async () => {
  mkdirSync(FOLDER, { recursive: true });
  writeFileSync(CONFIG, 'queue: {max_attempts: 1}\n');
  const upstream = createServer((request, response) => response.writeHead(request.url?.includes('broken') ? 503 : 200).end());
  upstream.listen(0, '127.0.0.1');
  await once(upstream, 'listening');
  const [server, browser] = await Promise.all([Server.gateway(`http://127.0.0.1:${String((upstream.address() as AddressInfo).port)}`, ['--config', CONFIG]), launch()]);
  await queue(server);
  // Of the overview only what has traffic is shown.
  const start = new Date(Date.now() + 5_000).toISOString();
  await seed(server, SECONDS);
  const { items } = await server.admin<{ items: { id: string; name: string }[] }>('GET', 'keys?name=search%20team');
  const key = items[0]?.id ?? '';
  const flow = traffic(server, 600).catch(() => undefined);
  for (const { name: size, width, height } of SIZES) {
    for (const colorScheme of ['light', 'dark'] as const) {
      const window = await Window.open(browser, server, { viewport: { width, height }, colorScheme });
      const { page } = window;
      const shoot = (name: string) => page.screenshot({ path: join(FOLDER, `${name}-${size}-${colorScheme}.png`), fullPage: size === 'phone' });
      await window.go('/');
      await page.getByLabel('Admin token').waitFor();
      await shoot('sign-in');
      await window.signIn();
      for (const [name, path] of PAGES.filter(([one]) => !ONLY || ONLY.split(',').includes(one))) {
        await window.go(path.replace('{start}', start).replace('{key}', key));
        await page.getByRole('heading', { level: 1 }).waitFor();
        await page.getByRole('status', { name: 'Loading' }).first().waitFor({ state: 'detached' });
        if (name === 'playground') {
          await page.getByLabel('Tenant').fill('initech');
          await page.getByLabel('Tokens').fill('9000');
          await page.getByRole('button', { name: 'Send 50' }).click();
          await page.getByText(/allowed, .* refused/).waitFor();
          await page.getByText('Send 50').waitFor();
        }
        if (name === 'key-revoke') await page.getByRole('button', { name: 'Revoke search team' }).click();
        if (name === 'review') {
          await page.getByLabel('How many').fill('4000');
          await page.getByRole('button', { name: 'Review and save' }).click();
        }
        if (name === 'raise') await page.getByLabel('How many').nth(1).fill('80000000');
        if (name === 'conflict') {
          await page.getByLabel('How many').fill('500');
          const { rule } = await server.admin<{ rule: { limit: number } }>('GET', 'rules/gpu-pool');
          await server.admin('POST', 'rules', { ...rule, limit: rule.limit + 50 });
          await page.getByRole('alert', { name: 'Conflict' }).waitFor();
        }
        if (name === 'details') await page.getByRole('button', { name: /Details of rule.update/ }).first().click();
        await page.waitForTimeout(name.startsWith('overview') ? 2500 : 400);
        await shoot(name);
        if (name === 'key-revoke') await page.keyboard.press('Escape');
      }
      if (size === 'phone') {
        await page.getByRole('button', { name: 'Menu' }).click();
        await shoot('menu');
      }
      await window.close();
    }
  }
  await browser.close();
  await server.end();
  upstream.close();
  await flow;
});
