// Whom an act is about: what is known of a client, and the rule that refused it.
import type { Decided, Rule } from '../api/types';

export const IDENTITIES = ['user_id', 'ip', 'tenant_id'] as const;
export type Identity = (typeof IDENTITIES)[number];
const CONTEXT = ['model_id', 'endpoint', 'method'] as const;

export const IDENTITY_NAMES: Record<Identity | 'api_key', string> = { user_id: 'user', ip: 'address', tenant_id: 'tenant', api_key: 'API key' };

export interface Subject {
  /** What it is called. */
  title: string;
  /** Attributes of a request, as the admin API names them. */
  attributes: Record<string, string>;
  /** The rule that refuses, if one does. */
  ruleId: string | null;
  /** The window of the limit that refused, in seconds, where it is known. */
  window?: number | null;
  /** Whether the attributes are those of a whole request, and not of a key alone. */
  isWhole: boolean;
}

export interface Client {
  type: Identity | 'api_key';
  id: string;
}

/** What can be put on a list, granted or reset. Of API keys only a hash is known, which names no client. */
export function identitiesOf({ attributes }: Subject): Client[] {
  return IDENTITIES.flatMap((type) => (attributes[type] === undefined ? [] : [{ type, id: attributes[type] }]));
}

export function fromDecision(row: Decided): Subject {
  const known: Record<string, string | null> = { user_id: row.user_id, ip: row.ip_address, tenant_id: row.tenant_id, api_key_id: row.api_key_id, model_id: row.model_id, endpoint: row.endpoint, method: row.method };
  const attributes = Object.fromEntries(Object.entries(known).filter((pair): pair is [string, string] => pair[1] !== null && pair[1] !== ''));
  return { title: row.user_id ?? (row.client_id || 'an unnamed client'), attributes, ruleId: row.rule_id, window: row.window_seconds, isWhole: row.kept === null };
}

export function fromKey(key: string, attributes: Record<string, string> | undefined, ruleId: string | null): Subject {
  const values = Object.values(attributes ?? {});
  return { title: values.length === 1 ? values[0] ?? key : key, attributes: attributes ?? {}, ruleId, isWhole: false };
}

/** The parameters of a search for the decisions of a subject. */
export function searchOf({ attributes, ruleId }: Subject, withRule: boolean): Record<string, string> {
  const names = [...IDENTITIES, 'api_key_id', 'model_id'].filter((name) => attributes[name] !== undefined);
  // One identity is enough, and an address changes more often than a name.
  const identity = names.find((name) => name === 'user_id') ?? names.find((name) => name !== 'model_id');
  const search: Record<string, string> = {};
  for (const name of names) if (name === identity || name === 'model_id') search[name] = attributes[name] ?? '';
  if (withRule && ruleId !== null) search['rule_id'] = ruleId;
  return search;
}

/** The body of a request with these attributes. */
export function requestOf({ attributes }: Subject): Record<string, string> {
  const names: Record<string, string> = { user_id: 'userId', ip: 'ip', tenant_id: 'tenantId', model_id: 'modelId', endpoint: 'endpoint', method: 'method' };
  return Object.fromEntries(Object.entries(names).flatMap(([from, to]) => (attributes[from] === undefined ? [] : [[to, attributes[from]]])));
}

/** What else is known of the request, for calls that name the client in their path. */
export function contextOf({ attributes }: Subject, without: string): Record<string, string> {
  const names = [...IDENTITIES, ...CONTEXT].filter((name) => name !== without && attributes[name] !== undefined);
  return Object.fromEntries(names.map((name) => [name, attributes[name] ?? '']));
}

/** Whom of these the rule counts by: only it can be given more. */
export function grantee(rule: Pick<Rule, 'identifier_type' | 'key_by'> | null, clients: Client[]): Client | null {
  const type = rule?.identifier_type ?? 'composite';
  const names = type === 'composite' ? rule?.key_by ?? ['user_id', 'model_id'] : type === 'client' ? ['user_id', 'ip'] : [type];
  return clients.find((client) => names.includes(client.type)) ?? null;
}

/** Under the other names the traffic of several is counted together. */
export const isNamed = (name: string) => name !== 'none' && name !== 'other';
