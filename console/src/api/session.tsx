// Who is signed in, for all parts of the page.
import { createContext, use } from 'react';
import type { Identity, Role } from './types';

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

export function useMay() {
  return may(useIdentity());
}
