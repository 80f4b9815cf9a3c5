// What was spent, in the console: by key, tenant, user and model, with files of it.
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

let server: Server;
let browser: Browser;

beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
});

afterAll(async () => {
  await browser.close();
  await server.end();
});

const post = async (path: string, body: unknown) => {
  const answer = await fetch(`${server.url}/rate-limit/${path}`, { method: 'POST', body: JSON.stringify(body) });
  return (await answer.json()) as { reservationId?: string };
};

test('what is settled is shown by user, and a file of it is safe to open', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  await page.getByRole('link', { name: 'Spend', exact: true }).click();
  await page.getByText('Nothing was used in this time').waitFor();
  await window.accessible('no spend');
  const { reservationId } = await post('reserve', { userId: '=1+1', modelId: 'm', money: { currency: 'USD', amount: '2' } });
  await post('settle', { reservationId, money: { currency: 'USD', amount: '1.25' } });
  const isWritten = async () => (await server.admin<{ items: unknown[] }>('GET', 'usage/report')).items.length > 0;
  await expect.poll(isWritten, { timeout: 10_000 }).toBe(true);
  await page.getByRole('button', { name: 'User', exact: true }).click();
  const table = page.getByRole('region', { name: 'Spend by user' });
  await table.getByText('1.25 USD').waitFor();
  expect(await table.textContent()).toContain('=1+1');
  await window.accessible('spend by user');
  const file = await page.evaluate(async () => (await fetch('/admin/api/v1/rate-limits/usage/report?format=csv&group_by=user')).text());
  expect(file).toContain("\r\n'=1+1,1,0,");
});
