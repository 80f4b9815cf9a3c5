// The first run at a terminal: a link that signs in once.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { expect, test } from 'vitest';
import { launch, Window } from './browser';
import { binary, Server } from './server';

test('the link of the terminal signs in once, and leaves the address', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'tollgate-first-'));
  // `script` of util-linux gives the process a terminal.
  const command = `sh -c 'echo pid=$$; exec ${binary()} serve --http 127.0.0.1:0 --grpc 127.0.0.1:0 --data-dir ${join(folder, 'data')}'`;
  const terminal = spawn('script', ['-qec', command, '/dev/null'], { stdio: ['ignore', 'pipe', 'ignore'] });
  const seen: Record<string, string> = {};
  for await (const line of createInterface({ input: terminal.stdout })) {
    const [, pid] = /pid=(\d+)/.exec(line) ?? [];
    const [, url, path] = /(http:\/\/\S+)(\/sign-in#\w+)/.exec(line) ?? [];
    if (pid) seen['pid'] = pid;
    if (url && path) Object.assign(seen, { url, path });
    if (seen['path']) break;
  }
  const browser = await launch();
  try {
    const server = Server.at(seen['url'] ?? '');
    const window = await Window.open(browser, server);
    await window.go(seen['path'] ?? '');
    await window.heading('Overview');
    expect(new URL(window.page.url()).hash).toBe('');
    await window.page.getByText('sign-in link').waitFor();
    await window.page.reload();
    await window.heading('Overview');
    await window.close();
    const other = await Window.open(browser, server);
    await other.go(seen['path'] ?? '');
    await other.page.getByText('This link was used already').waitFor();
    await other.close();
  } finally {
    await browser.close();
    process.kill(Number(seen['pid']), 'SIGTERM');
    await once(terminal, 'exit');
    rmSync(folder, { recursive: true, force: true });
  }
});
