// A real Tollgate on a free port, in a folder of its own.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';

const TOKEN = 'console-tests-admin-token-0123456789';
const ADMIN = '/admin/api/v1/rate-limits/';

export function binary(): string {
  const target = process.env['CARGO_TARGET_DIR'] ?? resolve(import.meta.dirname, '../../target');
  const path = process.env['TOLLGATE_BIN'] ?? join(target, 'debug/tollgate');
  if (!existsSync(path)) throw new Error(`${path} is not built: run \`cargo build -p tollgate-cli\` first, as \`make test\` does`);
  return path;
}

export class Server {
  readonly token = TOKEN;
  url = '';
  /** Where clients reach the service behind a gateway. */
  gatewayUrl = '';
  private command: 'serve' | 'gateway' = 'serve';
  private file: string | null = null;
  private more: string[] = [];
  private child: ChildProcess | null = null;
  private readonly folder = mkdtempSync(join(tmpdir(), 'tollgate-console-'));

  /** `rules`, if given, is the text of a rule file that it goes by. */
  static async start(rules?: string): Promise<Server> {
    const server = new Server();
    if (rules !== undefined) {
      server.file = join(server.folder, 'rules.yaml');
      writeFileSync(server.file, rules);
    }
    await server.begin('127.0.0.1:0');
    return server;
  }

  /** One that runs already. */
  static at(url: string): Server {
    const server = new Server();
    server.url = url;
    return server;
  }

  /** With further flags. */
  static async startWith(more: string[]): Promise<Server> {
    const server = new Server();
    server.more = more;
    await server.begin('127.0.0.1:0');
    return server;
  }

  /** On a given address, with further flags. */
  static async startAt(address: string, more: string[]): Promise<Server> {
    const server = new Server();
    server.more = more;
    await server.begin(address);
    return server;
  }

  /** A gateway before a service. */
  static async gateway(upstream: string, more: string[] = []): Promise<Server> {
    const server = new Server();
    server.command = 'gateway';
    server.more = ['--listen', '127.0.0.1:0', '--upstream', upstream, ...more];
    await server.begin('127.0.0.1:0');
    return server;
  }

  private async begin(address: string) {
    const args = [this.command, '--http', address, '--grpc', '127.0.0.1:0', '--data-dir', join(this.folder, 'data'), ...(this.file ? ['--rules', this.file] : []), ...this.more];
    const child = spawn(binary(), args, { env: { ...process.env, TOLLGATE_ADMIN_TOKEN: TOKEN }, stdio: ['ignore', 'pipe', 'ignore'] });
    this.child = child;
    const lines = createInterface({ input: child.stdout });
    const [first] = (await Promise.race([once(lines, 'line'), once(child, 'exit').then(() => { throw new Error('the server ended'); })])) as [string];
    const found = /http=(\S+)/.exec(first)?.[1];
    if (!found) throw new Error(`where does it listen? ${first}`);
    this.url = `http://${found}`;
    this.gatewayUrl = `http://${/gateway=(\S+)/.exec(first)?.[1] ?? ''}`;
  }

  /** Stops it, as an outage would. */
  async stop() {
    const child = this.child;
    this.child = null;
    if (!child || child.exitCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  /** The same again, on the same port. */
  async back() {
    await this.begin(new URL(this.url).host);
  }

  async end() {
    await this.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** A call of the admin API, as others than the console make it. */
  async admin<T = Record<string, unknown>>(method: string, path: string, body?: unknown, token = TOKEN): Promise<T> {
    const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
    const response = await fetch(`${this.url}${ADMIN}${path}`, { method, headers, body: body === undefined ? null : JSON.stringify(body) });
    if (!response.ok) throw new Error(`${method} ${path}: ${String(response.status)} ${await response.text()}`);
    return (await response.json()) as T;
  }

  async newToken(role: string, tenant?: string): Promise<string> {
    const made = await this.admin<{ token: string }>('POST', 'tokens', { name: `a ${role}`, role, ...(tenant ? { tenant_id: tenant } : {}) });
    return made.token;
  }

  /** A request of a client. */
  async allow(body: unknown): Promise<{ allowed: boolean; reason: string }> {
    const response = await fetch(`${this.url}/rate-limit/allow`, { method: 'POST', body: JSON.stringify(body) });
    return (await response.json()) as { allowed: boolean; reason: string };
  }
}
