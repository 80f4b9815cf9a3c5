// All nodes of the installation, as each of them says it is, and their figures together.
import { useQuery as useAsk } from '@tanstack/react-query';
import { get } from './client';
import type { InstallationFigures, Nodes } from './types';

const LOOK_MS = 2_000;

export function useNodes(enabled = true) {
  return useAsk({ queryKey: ['nodes'], queryFn: ({ signal }) => get<Nodes>('nodes', {}, signal), refetchInterval: LOOK_MS, enabled });
}

/** The figures of now, of one node or of all. */
export function useInstallation(node: string | null) {
  return useAsk({ queryKey: ['overview', node], queryFn: ({ signal }) => get<InstallationFigures>('overview', ofNode(node), signal), refetchInterval: LOOK_MS });
}

/** The parameter that chooses a node. */
export function ofNode(node: string | null): { node?: string } {
  return node === null ? {} : { node };
}
