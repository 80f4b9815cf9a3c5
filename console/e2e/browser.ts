// Debian's Chromium, and what every test wants of it.
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { type Browser, type BrowserContext, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import { expect } from 'vitest';
import type { Server } from './server';

const PATH = process.env['CHROMIUM'] ?? '/usr/bin/chromium';
const ARGS = ['--no-sandbox', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run', '--disable-gpu'];
/** With CONSOLE_DIST=dist the console is taken from that folder, so that a change of it needs no new binary. */
const DIST = process.env['CONSOLE_DIST'];
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

export function launch(): Promise<Browser> {
  return chromium.launch({ executablePath: PATH, args: ARGS });
}

/** A window that notes everything that must not happen in it. */
export class Window {
  readonly complaints: string[] = [];

  private constructor(
    readonly context: BrowserContext,
    readonly page: Page,
    private readonly server: Server,
  ) {}

  /** `others` are further origins that its pages may visit. */
  static async open(browser: Browser, server: Server, options: BrowserContextOptions = {}, others: string[] = []): Promise<Window> {
    const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, reducedMotion: 'reduce', ...options });
    const page = await context.newPage();
    const window = new Window(context, page, server);
    page.setDefaultTimeout(20_000);
    if (DIST !== undefined) await context.route((url) => url.href.startsWith(server.url) && !/^\/(admin|rate-limit|openapi)/.test(url.pathname), (route) => {
      const file = join(DIST, new URL(route.request().url()).pathname);
      return route.fulfill({ path: /\.\w+$/.test(file) && existsSync(file) ? file : join(DIST, 'index.html') });
    });
    page.on('request', (request) => {
      const url = request.url();
      if (![server.url, ...others].some((origin) => url.startsWith(origin)) && !url.startsWith('data:') && !url.startsWith('blob:')) window.complaints.push(`asked ${url}`);
    });
    page.on('pageerror', (error) => window.complaints.push(`threw ${error.message}`));
    page.on('console', (message) => {
      // A refused sign-in and a server that is away are errors of the network, and wanted.
      if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) window.complaints.push(message.text());
    });
    return window;
  }

  async go(path: string) {
    await this.page.goto(`${this.server.url}${path}`);
  }

  async signIn(token = this.server.token) {
    await this.go('/');
    await this.page.getByLabel('Admin token').fill(token);
    await this.page.getByRole('button', { name: 'Sign in' }).click();
    await this.page.getByRole('navigation', { name: 'Pages' }).or(this.page.getByRole('button', { name: 'Menu' })).first().waitFor();
  }

  heading(name: string) {
    return this.page.getByRole('heading', { name, level: 1 }).waitFor();
  }

  /** No serious violation of what people with disabilities need. */
  async accessible(what: string) {
    await this.page.evaluate(`${axe}; void 0`);
    const violations = await this.page.evaluate(async () => {
      const { axe: checker } = window as unknown as { axe: { run: (options: object) => Promise<{ violations: { id: string; impact: string; nodes: { html: string }[] }[] }> } };
      const { violations: found } = await checker.run({ resultTypes: ['violations'] });
      return found.filter(({ impact }) => impact === 'serious' || impact === 'critical').map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).slice(0, 3).join(' | ')}`);
    });
    expect(violations, what).toEqual([]);
  }

  async close() {
    const { complaints } = this;
    await this.context.close();
    expect(complaints).toEqual([]);
  }
}
