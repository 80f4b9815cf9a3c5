import { QueryClient, QueryClientProvider } from '@tanstack/react-query';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { ApiError } from './api/client';
import { App } from './app';
import { applyTheme } from './ui/theme';
import './styles/base.css';
import './styles/parts.css';
import './styles/pages.css';

applyTheme();

/** A server that is away is asked again by the live connection; a refusal stays one. */
const retry = (failures: number, error: Error) => !(error instanceof ApiError && error.status < 500) && failures < 1;

const queries = new QueryClient({
  defaultOptions: { queries: { retry, staleTime: 2_000, refetchOnWindowFocus: true } },
});

const root = document.getElementById('root');
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <App />
      </QueryClientProvider>
    </StrictMode>,
  );
}
