// Charts: a range is chosen by drag and by keyboard and is part of the address; scales, breakdowns, tables, time zones.
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

const RULE = { rule_id: 'per-user', identifier_type: 'user_id', limit: 5, window: '1h', algorithm: 'sliding_window_log', applies_to: { endpoints: ['/v1/*'] } };
const WATCHED = { ...RULE, rule_id: 'half', limit: 2, action: 'log_only' };
/** A name that would be markup, if anybody took it for that. */
const MARKUP = '<img src=x onerror="document.title=1">';
const STEPS = 180;
const SPIKE = 90_000;

let server: Server;
let browser: Browser;
let window: Window;

const chart = (name: RegExp) => window.page.getByRole('slider', { name });
const decisions = () => chart(/^Decisions per second/);
const address = () => Object.fromEntries(new URL(window.page.url()).searchParams);

beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
  for (const rule of [RULE, WATCHED]) await server.admin('POST', 'rules', rule);
  await server.admin('POST', 'blacklist', { identifier_type: 'user_id', identifier: 'mallory', reason: 'stolen card' });
  for (const [userId, times] of [['ann', 9], ['mallory', 3], [MARKUP, 7]] as const) {
    for (let at = 0; at < times; at += 1) await server.allow({ userId, tenantId: userId === MARKUP ? MARKUP : 'acme', endpoint: '/v1/chat', method: 'POST', modelId: 'gpt4' });
  }
  window = await Window.open(browser, server, { timezoneId: 'America/New_York' });
  await window.signIn();
});

afterAll(async () => {
  await window.close();
  await browser.close();
  await server.end();
});

test('a drag zooms all charts, a link shows the same range, and there is a way back', async () => {
  const { page } = window;
  await window.go('/?minutes=15');
  await decisions().waitFor();
  expect(await page.getByText(/^Showing/).count()).toBe(0);
  const box = await decisions().boundingBox();
  if (!box) throw new Error('the chart has no place');
  await page.mouse.move(box.x + box.width * 0.5, box.y + 80);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.9, box.y + 90, { steps: 4 });
  await page.mouse.up();
  await page.getByRole('status').getByText(/^Showing .* America\/New_York/).waitFor();
  const { from = '', until = '' } = address();
  const length = Date.parse(until) - Date.parse(from);
  expect(length).toBeGreaterThan(4 * 60_000);
  expect(length).toBeLessThan(9 * 60_000);
  await page.reload();
  await page.getByText(/^Showing/).waitFor();
  expect(address()).toMatchObject({ from, until });
  expect(Number(await decisions().getAttribute('aria-valuemax'))).toBeLessThan(110);
  await window.accessible('a zoomed chart');
  await page.getByRole('button', { name: 'Back to the last 15 min' }).click();
  await page.getByText(/^Showing/).waitFor({ state: 'detached' });
  expect(address()).toEqual({ minutes: '15' });
});

test('a chart is read and zoomed by keyboard alone', async () => {
  const { page } = window;
  await window.go('/?minutes=15');
  await decisions().focus();
  await page.keyboard.press('Home');
  await expect.poll(() => decisions().getAttribute('aria-valuenow')).toBe('0');
  await page.keyboard.press('End');
  // The first step of a history ends after five seconds.
  await expect.poll(() => decisions().getAttribute('aria-valuetext'), { timeout: 20_000 }).toMatch(/^\d\d:\d\d:\d\d: Allowed [\d.]+\/s, Refused [\d.]+\/s/);
  await page.keyboard.press('ArrowLeft');
  await expect.poll(() => decisions().getAttribute('aria-valuenow')).toBe(String(STEPS - 2));
  await page.locator('.chart-tip').filter({ visible: true }).getByText('America/New_York').waitFor();
  await page.keyboard.press('+');
  await page.getByText(/^Showing/).waitFor();
  await page.keyboard.press('Escape');
  await page.getByText(/^Showing/).waitFor({ state: 'detached' });
});

test('a range is typed, for those who drag nothing', async () => {
  const { page } = window;
  await window.go('/');
  await page.getByText('Exact range').click();
  const local = (ago: number) => page.evaluate((millis) => { const at = new Date(Date.now() - millis); return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19); }, ago);
  const [from, until] = [await local(600_000), await local(300_000)];
  await page.getByLabel('Until (America/New_York)').fill(until);
  await page.getByText('The range has no beginning.').waitFor();
  await page.getByLabel('From (America/New_York)').fill(from);
  await page.getByText(`Showing ${from.replace('T', ' ')} – `).waitFor();
  await window.accessible('an exact range');
});

test('a range that cannot be is explained', async () => {
  const { page } = window;
  await window.go('/?from=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z');
  await page.getByText('The range ends before it begins.').waitFor();
  await window.go('/?from=2999-01-01T00:00:00Z&until=2999-01-02T00:00:00Z');
  await page.getByText('The range is in the future.').waitFor();
  await window.go('/?from=%3Cimg%20src=x%3E');
  await page.getByText('The range of the address cannot be read.').waitFor();
  await decisions().waitFor();
});

test('a spike is cut off with a mark, shown whole, or on a logarithmic scale', async () => {
  const { page } = window;
  await page.route('**/history?**', (route) => {
    const flat = Array.from({ length: STEPS }, (_, index) => (index === 100 ? SPIKE : 50));
    const ms = flat.map(() => 0.5);
    const none = flat.map(() => 0);
    return route.fulfill({ json: { node: 'n', until: new Date().toISOString(), step_seconds: 5, steps: STEPS, values: [], all: { allowed: flat, denied: none, throttled: none, queued: none, would_deny: none, p50_ms: ms, p95_ms: ms, p99_ms: ms } } });
  });
  await window.go('/?minutes=15');
  await page.getByText(/1 step above 20\/s cut off, up to 18K\/s at/).waitFor();
  await page.getByRole('button', { name: 'Show whole' }).click();
  await page.getByText(/cut off/).waitFor({ state: 'detached' });
  expect(address()).toMatchObject({ scale: 'full' });
  await page.getByRole('group', { name: 'Scale' }).getByRole('button', { name: 'Log' }).click();
  expect(address()).toMatchObject({ scale: 'log' });
  await page.unroute('**/history?**');
});

test('refusals are shown by rule and by reason, and what would be refused apart from them', async () => {
  const { page } = window;
  const card = page.locator('.card', { has: page.getByRole('group', { name: 'Refusals by' }) });
  await window.go('/?minutes=15&by=rule_id');
  await card.getByRole('link', { name: 'per-user' }).waitFor();
  await card.getByRole('cell', { name: 'no rule' }).waitFor();
  expect(await card.getByText('half').count()).toBe(0);
  await card.getByRole('button', { name: 'Reason' }).click();
  await card.getByRole('link', { name: 'DENY_LISTED' }).waitFor();
  await card.getByRole('button', { name: 'Would be refused' }).click();
  await card.getByRole('button', { name: 'Rule', exact: true }).click();
  await card.getByRole('link', { name: 'half' }).waitFor();
  expect(await card.getByRole('link', { name: 'per-user' }).count()).toBe(0);
  expect(address()).toMatchObject({ by: 'rule_id', of: 'would_deny' });
  await window.accessible('a breakdown by rule');
  await card.getByRole('button', { name: 'Tenant' }).click();
  await card.getByRole('button', { name: `Actions for ${MARKUP}` }).waitFor();
  expect(await page.locator('main img').count()).toBe(0);
});

test('a chart has its figures as a table', async () => {
  const { page } = window;
  await window.go('/?minutes=5');
  const card = page.locator('.card', { has: decisions() });
  await card.getByText('As a table').click();
  await card.getByRole('columnheader', { name: 'Time (America/New_York)' }).waitFor();
  await card.getByRole('columnheader', { name: 'Would be refused' }).waitFor();
  await card.getByRole('cell', { name: /\/s$/ }).first().waitFor();
  await window.accessible('a table of figures');
});

test('the time zone is switched on every page, and remembered', async () => {
  const { page } = window;
  await window.go('/audit');
  const time = page.locator('td time').first();
  const local = await time.getAttribute('title');
  await page.getByRole('button', { name: /^Times in America\/New_York \(local\)/ }).click();
  await page.getByRole('button', { name: /^Times in UTC/ }).waitFor();
  const utc = new Date((await time.getAttribute('datetime')) ?? '').toISOString().slice(0, 19).replace('T', ' ');
  await expect.poll(() => time.getAttribute('title')).toBe(utc);
  expect(utc).not.toBe(local);
  await window.go('/audit?kind=decisions&from=2999-01-01T00:00:00Z');
  await page.getByLabel('From (UTC)').waitFor();
  await page.getByRole('button', { name: /^Times in UTC/ }).click();
  await page.getByLabel('From (America/New_York)').waitFor();
});

test('the page of a client has its decisions over time', async () => {
  const { page } = window;
  await window.go('/clients?type=user_id&id=ann');
  const slider = chart(/^Decisions per minute/);
  await slider.waitFor();
  await expect.poll(() => slider.getAttribute('aria-valuetext')).toMatch(/Refused [\d.]+\/min/);
  await page.getByRole('group', { name: 'Decisions by' }).getByRole('button', { name: 'Rule' }).click();
  await expect.poll(() => slider.getAttribute('aria-label')).toContain('per-user');
  await window.accessible('a chart of a client');
  await window.go('/clients?type=tenant_id&id=acme');
  await chart(/^Requests of acme per second/).waitFor();
});
