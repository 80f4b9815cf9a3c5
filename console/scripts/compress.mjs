// Compresses what was built, so that the server need not, and fails when there is too much of it.
import { readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { brotliCompressSync, constants, gzipSync } from 'node:zlib';

const DIST = new URL('../dist', import.meta.url).pathname;
const MOST_JAVASCRIPT = 250_000;
const COMPRESSIBLE = /\.(html|js|css|svg|json)$/;

const files = (folder) =>
  readdirSync(folder).flatMap((name) => {
    const path = join(folder, name);
    return statSync(path).isDirectory() ? files(path) : [path];
  });

let javascript = 0;
for (const path of files(DIST).filter((path) => COMPRESSIBLE.test(path))) {
  const bytes = readFileSync(path);
  const gzip = gzipSync(bytes, { level: 9 });
  writeFileSync(`${path}.gz`, gzip);
  writeFileSync(`${path}.br`, brotliCompressSync(bytes, { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } }));
  if (path.endsWith('.js')) javascript += gzip.length;
}
console.log(`JavaScript: ${(javascript / 1000).toFixed(1)} kB gzip of ${MOST_JAVASCRIPT / 1000} kB`);
if (javascript > MOST_JAVASCRIPT) {
  console.error('the console has more JavaScript than it may have: see console/scripts/compress.mjs');
  process.exit(1);
}
