// A lot of everything: the page stays small, and its cost is printed.
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { Server } from './server';

const RULES = 10_000;
const POINTS = 1_000;
const SERIES = 10;
const TICKS = 10;

let server: Server;
let browser: Browser;

beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
});

afterAll(async () => {
  await browser.close();
  await server.end();
});

test(`${String(RULES)} rules: at most 100 rows in the page`, async () => {
  const rules = Array.from({ length: RULES }, (_, index) => ({ rule_id: `rule-${String(index).padStart(5, '0')}`, identifier_type: 'user_id', limit: 100 + index, window: '1m', applies_to: { tenants: [`t${String(index)}`] } }));
  await server.admin('POST', 'apply', { rules });
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  await page.getByRole('link', { name: 'Rules' }).click();
  await page.getByText('10,000 rules').waitFor();
  const rows = () => page.locator('tbody tr:not(.space)').count();
  const box = page.getByRole('region', { name: 'Rules' });
  for (const place of [0, 0.3, 0.7, 1]) {
    await box.evaluate((element, share) => element.scrollTo(0, element.scrollHeight * share), place);
    const wanted = place === 1 ? 'rule-09999' : place === 0 ? 'rule-00000' : null;
    if (wanted) await page.getByRole('link', { name: wanted }).waitFor();
    // The rows of the place follow the scrolling.
    await expect.poll(rows).toBeGreaterThan(10);
    expect(await rows()).toBeLessThanOrEqual(100);
  }
  await page.getByRole('searchbox').fill('rule-0777');
  await page.getByText('10 shown', { exact: false }).waitFor();
  expect(await rows()).toBe(10);
  await window.close();
});

test(`${String(POINTS)} points x ${String(SERIES)} series live: long tasks are counted`, async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  // A day of ten busy tenants cannot be waited for: these answers are made up, and come as fast as they are asked for.
  let asked = 0;
  await page.route('**/history?**', (route) => {
    asked += 1;
    const wave = (phase: number) => Array.from({ length: POINTS }, (_, index) => Math.round(500 + 400 * Math.sin((index + asked) / 40 + phase)));
    const ms = (phase: number) => wave(phase).map((value) => value / 500);
    const body = {
      node: 'n', until: new Date(Date.now()).toISOString(), step_seconds: 60, steps: POINTS,
      all: { allowed: wave(0), denied: wave(1), throttled: wave(2), queued: wave(3), p50_ms: ms(0), p95_ms: ms(1), p99_ms: ms(2) },
      values: Array.from({ length: SERIES }, (_, index) => ({ name: `tenant-${String(index)}`, allowed: wave(index), refused: wave(index + 1) })),
    };
    return route.fulfill({ json: body });
  });
  await window.signIn();
  await window.go('/?minutes=1440&by=tenant_id');
  await page.getByText('tenant-9').first().waitFor();
  const observe = () => page.evaluate(() => {
    const seen: number[] = [];
    (window as unknown as { longTasks: number[] }).longTasks = seen;
    new PerformanceObserver((entries) => seen.push(...entries.getEntries().map((entry) => entry.duration))).observe({ type: 'longtask' });
  });
  await observe();
  const before = asked;
  for (let tick = 0; tick < TICKS; tick += 1) {
    // What a new revision does: everything that is shown is asked for again.
    const answered = page.waitForResponse(/history/);

    await server.admin('PUT', 'settings/no_match', { value: tick % 2 === 0 ? 'deny' : 'allow' });
    await answered;
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
  }
  const tasks = await page.evaluate(() => (window as unknown as { longTasks: number[] }).longTasks);
  const total = tasks.reduce((sum, one) => sum + one, 0);
  console.log(`live charts: ${String(asked - before)} updates of ${String(POINTS)} points x ${String(SERIES)} series, ${String(tasks.length)} long tasks (over 50 ms), longest ${String(Math.round(Math.max(0, ...tasks)))} ms, together ${String(Math.round(total))} ms`);
  expect(asked - before).toBeGreaterThanOrEqual(TICKS);
  expect(await page.locator('canvas').count()).toBe(3);
  await window.close();
});
