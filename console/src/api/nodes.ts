// All nodes of the installation, as each of them says it is.
import { useQuery as useAsk } from '@tanstack/react-query';
import { get } from './client';
import type { Nodes } from './types';

const LOOK_MS = 3_000;

export function useNodes() {
  return useAsk({ queryKey: ['nodes'], queryFn: ({ signal }) => get<Nodes>('nodes', {}, signal), refetchInterval: LOOK_MS });
}
