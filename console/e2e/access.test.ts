// Every page for everyone: axe in light and dark, and the main actions by keyboard alone.
import type { Browser, Locator, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, Window } from './browser';
import { seed } from './seed';
import { Server } from './server';

let server: Server;
let browser: Browser;

beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
  await seed(server, 3);
});

afterAll(async () => {
  await browser.close();
  await server.end();
});

const PAGES = ['/', '/playground', '/rules', '/rules/new', '/rules/chat-per-user', '/rules/chat-per-user?tab=versions', '/clients?type=user_id&id=ann&model=gpt-4o', '/keys', '/keys/new', '/spend', '/lists', '/tiers', '/audit', '/audit?kind=decisions', '/nodes', '/tokens', '/nodes/none', '/sign-in'];

test.each(['light', 'dark'] as const)('axe finds nothing serious in %s', async (colorScheme) => {
  const window = await Window.open(browser, server, { colorScheme });
  const { page } = window;
  await window.go('/');
  await page.getByLabel('Admin token').waitFor();
  await window.accessible('sign in');
  await window.signIn();
  for (const path of PAGES) {
    await window.go(path);
    await page.getByRole('heading', { level: 1 }).waitFor();
    await page.getByRole('status', { name: 'Loading' }).first().waitFor({ state: 'detached' });
    if (path === '/playground') await page.getByRole('button', { name: 'Send 50' }).click();
    if (path === '/playground') await page.getByText(/allowed, .* refused/).waitFor();
    await window.accessible(`${path} in ${colorScheme}`);
  }
  await window.go('/lists');
  await page.getByRole('button', { name: 'Block somebody' }).click();
  await page.getByRole('dialog').waitFor();
  await window.accessible(`a dialog in ${colorScheme}`);
  await window.close();
});

test('it can be read on a telephone', async () => {
  const window = await Window.open(browser, server, { viewport: { width: 390, height: 844 } });
  const { page } = window;
  await window.signIn();
  for (const path of PAGES) {
    await window.go(path);
    await page.getByRole('heading', { level: 1 }).waitFor();
    await page.getByRole('status', { name: 'Loading' }).first().waitFor({ state: 'detached' });
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    expect(wider, `${path} is wider than the screen`).toBe(0);
  }
  await page.getByRole('button', { name: 'Menu' }).click();
  await page.getByRole('link', { name: 'Nodes' }).click();
  await window.heading('Nodes');
  await window.close();
});

test.each([390, 1440])('a long reason does not widen its table at %i', async (width) => {
  const window = await Window.open(browser, server, { viewport: { width, height: 844 } });
  const { page } = window;
  await server.admin('POST', 'blacklist', { identifier_type: 'user_id', identifier: `long-${String(width)}`, reason: 'x'.repeat(200) });
  await window.signIn();
  await window.go('/lists');
  await page.getByText(`long-${String(width)}`).waitFor();
  const wider = await page.locator('.table-box').evaluate((box) => box.scrollWidth - box.clientWidth);
  expect(wider).toBe(0);
  await window.close();
});

/** Goes on with Tab until something has the focus. */
async function tabTo(page: Page, target: Locator) {
  for (let presses = 0; presses < 120; presses += 1) {
    await page.keyboard.press('Tab');
    if (await target.evaluate((element) => element === document.activeElement)) return;
  }
  throw new Error('Tab does not lead there');
}

/** What can be acted on: numbered, and the names of those that no key leads to or that only a mouse can press. */
function actions() {
  const native = 'a[href], button, input, select, textarea, summary, [role="switch"], [role="tab"], [role="radio"]';
  const isShown = (element: Element) => element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length > 0;
  const name = (element: Element) => `${element.tagName.toLowerCase()} ${element.getAttribute('aria-label') ?? element.textContent}`.slice(0, 80);
  // Of a group of radio buttons one is reached by Tab, and the others by arrows.
  const isRoving = (element: Element) => (element instanceof HTMLInputElement && element.type === 'radio' && !element.checked) || /^(tab|radio)$/.test(element.getAttribute('role') ?? '');
  const found = [...document.querySelectorAll<HTMLElement>(native)].filter((element) => isShown(element) && !element.matches(':disabled') && !isRoving(element));
  found.forEach((element, number) => {
    element.dataset['number'] = String(number);
  });
  const mouseOnly = [...document.querySelectorAll<HTMLElement>('body *')].filter((element) => isShown(element) && getComputedStyle(element).cursor === 'pointer' && !element.closest(`${native}, label, [tabindex="0"]`));
  return { names: found.map(name), mouseOnly: mouseOnly.map(name) };
}

test('no action is out of the keyboard\'s reach', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  await window.signIn();
  for (const path of PAGES.filter((path) => path !== '/sign-in')) {
    await window.go(path);
    await page.getByRole('heading', { level: 1 }).waitFor();
    await page.getByRole('status', { name: 'Loading' }).first().waitFor({ state: 'detached' });
    const { names, mouseOnly } = await page.evaluate(actions);
    expect(mouseOnly, `${path}: for mice alone`).toEqual([]);
    expect(names.length, `${path} has actions`).toBeGreaterThan(5);
    const reached = new Set<string>();
    for (let presses = 0; presses < names.length + 30 && reached.size < names.length; presses += 1) {
      await page.keyboard.press('Tab');
      const number = await page.evaluate(() => (document.activeElement as HTMLElement | null)?.dataset['number']);
      if (number !== undefined) reached.add(number);
    }
    // What was redrawn meanwhile has lost its number, and counts as gone.
    const left = await page.evaluate(() => [...document.querySelectorAll<HTMLElement>('[data-number]')].map((element) => element.dataset['number'] ?? ''));
    expect(left.filter((number) => !reached.has(number)).map((number) => names[Number(number)]), `${path}: not reached by Tab`).toEqual([]);
  }
  await window.close();
}, 120_000);

test('everything that matters can be done by keyboard', async () => {
  const window = await Window.open(browser, server);
  const { page } = window;
  const { keyboard } = page;
  await window.go('/');
  // The token's field has the focus already.
  await page.getByLabel('Admin token').waitFor();
  await keyboard.type(server.token);
  await keyboard.press('Enter');
  await window.heading('Overview');
  await tabTo(page, page.getByRole('link', { name: 'Rules', exact: true }));
  await keyboard.press('Enter');
  await window.heading('Rules');
  await tabTo(page, page.getByRole('link', { name: 'New rule', exact: true }));
  await keyboard.press('Enter');
  await window.heading('New rule');
  await tabTo(page, page.getByLabel('Id', { exact: true }));
  await keyboard.type('by-keyboard');
  await tabTo(page, page.getByLabel('How many'));
  await keyboard.press('Control+A');
  await keyboard.type('2');
  await page.getByText('The server would take it').waitFor();
  await tabTo(page, page.getByRole('button', { name: 'Review and save' }));
  await keyboard.press('Enter');
  await page.getByRole('dialog').waitFor();
  await tabTo(page, page.getByRole('button', { name: 'Save, in force at once' }));
  await keyboard.press('Enter');
  await page.getByText('by-keyboard is saved and in force.').waitFor();
  await tabTo(page, page.getByRole('link', { name: 'Playground' }));
  await keyboard.press('Enter');
  await window.heading('Playground');
  await tabTo(page, page.getByRole('button', { name: 'Check' }));
  await keyboard.press('Enter');
  await page.getByLabel('Decision').waitFor();
  await tabTo(page, page.getByRole('link', { name: 'Lists' }));
  await keyboard.press('Enter');
  await window.heading('Lists');
  await tabTo(page, page.getByRole('button', { name: 'Block somebody' }));
  await keyboard.press('Enter');
  await tabTo(page, page.getByRole('dialog').getByLabel('Name or address'));
  await keyboard.type('198.51.100.7');
  await tabTo(page, page.getByRole('dialog').getByLabel('Reason'));
  await keyboard.type('abuse');
  await keyboard.press('Enter');
  await page.getByText('198.51.100.7 is on the deny list.').waitFor();
  await tabTo(page, page.getByRole('button', { name: 'Block somebody' }));
  await keyboard.press('Enter');
  await page.getByRole('dialog').waitFor();
  await keyboard.press('Escape');
  await page.locator('dialog').waitFor({ state: 'detached' });
  expect(await page.getByRole('button', { name: 'Block somebody' }).evaluate((element) => element === document.activeElement)).toBe(true);
  await keyboard.press('Enter');
  await page.getByRole('dialog').waitFor();
  await tabTo(page, page.getByRole('button', { name: 'Cancel' }));
  await keyboard.press('Enter');
  await page.locator('dialog').waitFor({ state: 'detached' });
  expect(await page.getByRole('button', { name: 'Block somebody' }).evaluate((element) => element === document.activeElement)).toBe(true);
  await tabTo(page, page.getByRole('button', { name: /^Theme/ }));
  await keyboard.press('Enter');
  await tabTo(page, page.getByRole('button', { name: 'Sign out' }));
  await keyboard.press('Enter');
  await page.getByLabel('Admin token').waitFor();
  await window.close();
});
