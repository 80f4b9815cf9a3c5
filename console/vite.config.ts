import react from '@vitejs/plugin-react';
import { defineConfig } from 'vitest/config';

// `npm run dev` shows the Tollgate at TOLLGATE_URL: TOLLGATE_URL=http://127.0.0.1:8080 npm run dev
const server = process.env['TOLLGATE_URL'] ?? 'http://127.0.0.1:8080';

export default defineConfig({
  plugins: [react()],
  build: {
    target: 'es2022',
    // Small files stay files: the content policy lets images be data, and nothing else.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: { '/admin': { target: server } } },
  test: { environment: 'happy-dom', include: ['src/**/*.test.{ts,tsx}'] },
});
