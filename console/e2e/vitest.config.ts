import { defineConfig } from 'vitest/config';

// One browser and one server at a time: the machine may be small, and times are not what is tested.
export default defineConfig({
  test: {
    include: ['e2e/**/*.test.ts'],
    environment: 'node',
    fileParallelism: false,
    testTimeout: 90_000,
    hookTimeout: 60_000,
    reporters: ['verbose'],
  },
});
