import { defineConfig } from 'vitest/config';

// Pictures of every page, for eyes: `npm run screenshots`, then look into screenshots/.
export default defineConfig({
  test: { include: ['e2e/screenshots.ts'], environment: 'node', testTimeout: 600_000, hookTimeout: 120_000 },
});
