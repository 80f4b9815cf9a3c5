// Who is signed in, for all parts of the page.
import { useQuery as useAsk } from '@tanstack/react-query';
import { createContext, use } from 'react';
import { get } from './client';
import type { Identity, Node, Role } from './types';

export const SessionContext = createContext<Identity | null>(null);

export function useIdentity(): Identity {
  const identity = use(SessionContext);
  if (!identity) throw new Error('nobody is signed in');
  return identity;
}

const RANK: Record<Role, number> = { tenant_admin: 0, viewer: 1, operator: 2, admin: 3 };

/** What a role may do. The server decides; this only hides what would be refused. */
export function may(identity: Identity) {
  const rank = RANK[identity.role];
  const isTenant = identity.role === 'tenant_admin';
  return {
    isTenant,
    /** See what belongs to all. */
    view: rank >= 1,
    /** Change what belongs to all. */
    operate: rank >= 2,
    /** Change rules, its own at least. */
    rules: rank >= 2 || isTenant,
    administer: rank >= 3,
  };
}

/** Whether a file says what the rules, lists and plans are: then nothing of them is kept or changed by the admin API. */
export function useIsFromFile(): boolean {
  const { view } = may(useIdentity());
  const node = useAsk({ queryKey: ['node'], queryFn: ({ signal }) => get<Node>('node', {}, signal), enabled: view });
  return node.data?.rules.source === 'file';
}

export function useMay() {
  const allowed = may(useIdentity());
  const isFromFile = useIsFromFile();
  return {
    ...allowed,
    isFromFile,
    /** Reset what was counted, which no file decides. */
    reset: allowed.rules,
    /** Make, change and revoke virtual keys, which no file decides either. */
    keys: allowed.rules,
    /** Charge made-up requests, change the level of the log. */
    run: allowed.operate,
    operate: allowed.operate && !isFromFile,
    rules: allowed.rules && !isFromFile,
  };
}
