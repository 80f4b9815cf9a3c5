// Virtual keys: the list, as far as it is loaded, and what one has used.
import { useQuery as useAsk } from '@tanstack/react-query';
import { get, segment } from './client';
import type { ClientPage, Limit, Page, VirtualKey } from './types';
import { useMay } from './session';

const PAGE = 1_000;
/** Keys that the list loads; an installation may have many more. */
export const MAX_LOADED = 5_000;
/** Keys that a search on the server returns for each field. */
const MAX_FOUND = 200;
const USE_MS = 15_000;

export interface KeyList {
  keys: VirtualKey[];
  /** Whether there are keys that are not loaded. */
  isMore: boolean;
}

export async function loadKeys(signal: AbortSignal): Promise<KeyList> {
  const keys: VirtualKey[] = [];
  let cursor: string | null = null;
  do {
    const page: Page<VirtualKey> = await get<Page<VirtualKey>>('keys', { limit: PAGE, cursor }, signal);
    keys.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor !== null && keys.length < MAX_LOADED);
  return { keys, isMore: cursor !== null };
}

/** The keys whose name, owner or tenant is this text, or whose id begins with it. */
export async function searchKeys(text: string, signal: AbortSignal): Promise<VirtualKey[]> {
  const fields = ['name', 'owner', 'tenant_id', ...(text.startsWith('key_') ? ['prefix'] : [])];
  const pages = await Promise.all(fields.map((field) => get<Page<VirtualKey>>('keys', { [field]: text, limit: MAX_FOUND }, signal)));
  return [...new Map(pages.flatMap(({ items }) => items).map((key) => [key.id, key])).values()];
}

/** What a key has used of its own limits now. Only for those who may see all rules; a key that is not accepted has none. */
export function useKeyUse(key: VirtualKey): Limit[] | undefined {
  const { view } = useMay();
  const use = useAsk({
    queryKey: ['key-use', key.id],
    queryFn: async ({ signal }) => (await get<{ limits: Limit[] }>(`usage/api_key/${segment(key.id)}`, {}, signal)).limits,
    enabled: view && key.status === 'active' && !!key.budget,
    refetchInterval: USE_MS,
    staleTime: USE_MS / 2,
  });
  return use.data;
}

/** The same with the recent requests of the key, and the name that the log of decisions knows it by. */
export function useKeyClient(id: string) {
  return useAsk({
    queryKey: ['client', 'api_key', id, ''],
    queryFn: ({ signal }) => get<ClientPage>(`clients/api_key/${segment(id)}`, {}, signal),
    refetchInterval: USE_MS,
  });
}
