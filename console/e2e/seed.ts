// An installation as there might be one: an AI platform with plans, tenants and a guest who asks too much.
import type { Server } from './server';

const RULES = [
  { rule_id: 'chat-per-user', name: 'Chat, per user and model', scope: 'USER_MODEL', identifier_type: 'composite', key_by: ['user_id', 'model_id'], limit: 600, window: '1m', algorithm: 'sliding_window_log', soft_limit: 0.8 },
  { rule_id: 'chat-tokens', name: 'Tokens of a tenant', scope: 'TENANT_MODEL', identifier_type: 'composite', key_by: ['tenant_id', 'model_id'], unit: 'tokens', limits: [{ limit: 400000, window: '1m' }, { limit: 50000000, calendar: 'day', timezone: 'Europe/Berlin' }] },
  { rule_id: 'tenant-hourly', name: 'Requests of a tenant by plan', scope: 'TENANT_GLOBAL', identifier_type: 'tenant_id', limit: 3000, window: '1h', algorithm: 'sliding_window_counter', tier_limits: { free: 2000, pro: 50000, enterprise: 'unlimited' } },
  { rule_id: 'gpu-pool', name: 'Protects the GPU pool', scope: 'GLOBAL_MODEL', identifier_type: 'composite', key_by: ['model_id'], limit: 200, window: '1s' },
  { rule_id: 'login-by-address', name: 'Guessing passwords', identifier_type: 'ip', algorithm: 'sliding_window_log', limit: 10, window: '1m', applies_to: { endpoints: ['/login'], methods: ['POST'] } },
  { rule_id: 'exports', name: 'Exports at the same time', identifier_type: 'tenant_id', unit: 'concurrency', limit: 2, slot_ttl: '5m', applies_to: { endpoints: ['/exports'], methods: ['POST'] } },
  { rule_id: 'monthly', name: 'Monthly quota, follows the invoice', identifier_type: 'tenant_id', limit: 100000, calendar: 'month', timezone: 'Europe/Berlin', anchor_day: 15, soft_limit: 0.9 },
  { rule_id: 'sms', name: 'One after the other', identifier_type: 'global', algorithm: 'gcra', limit: 5, window: '1s', applies_to: { endpoints: ['/sms'] }, is_active: false },
  { rule_id: 'tomorrow', name: 'On trial: half as many', scope: 'USER_MODEL', identifier_type: 'composite', key_by: ['user_id', 'model_id'], limit: 300, window: '1m', action: 'log_only' },
];

const USERS = ['ann', 'bob', 'cleo', 'dan', 'eve', 'finn', 'gil', 'hana'];
const TENANTS = ['acme', 'globex', 'initech', 'umbrella', 'hooli'];
const MODELS = ['gpt-4o', 'llama-70b', 'mixtral', 'embed-small'];

export async function seed(server: Server, seconds: number) {
  for (const name of ['free', 'pro', 'enterprise']) await server.admin('POST', 'tiers', { name, description: { free: 'Everyone', pro: 'Paying customers', enterprise: 'By contract' }[name], is_default: name === 'free' });
  for (const [identifier, tier] of [['acme', 'enterprise'], ['globex', 'pro'], ['initech', 'pro']]) await server.admin('POST', 'client-tiers', { identifier_type: 'tenant_id', identifier, tier });
  for (const rule of RULES) await server.admin('POST', 'rules', rule);
  await server.admin('POST', 'rules', { ...RULES[0], limit: 900 });
  await server.admin('POST', 'rules', RULES[0]);
  await server.admin('POST', 'blacklist', { identifier_type: 'ip', identifier: '203.0.113.0/24', reason: 'abuse report 4711', expires_at: '2099-01-01T00:00:00Z' });
  await server.admin('POST', 'blacklist', { identifier_type: 'user_id', identifier: 'mallory', reason: 'stolen card' });
  await server.admin('POST', 'blacklist', { identifier_type: 'ip', identifier: '2001:db8:bad::/48', reason: 'scraper' });
  await server.admin('POST', 'whitelist', { identifier_type: 'ip', identifier: '10.0.0.0/8', reason: 'our own network' });
  await server.admin('POST', 'grants', { rule_id: 'tenant-hourly', identifier_type: 'tenant_id', identifier: 'umbrella', extra: 500, expires_at: '2099-01-01T00:00:00Z', reason: 'launch week' });
  await seedKeys(server);
  await server.admin('POST', 'tokens', { name: 'dashboard', role: 'viewer' });
  await server.admin('POST', 'tokens', { name: 'acme it', role: 'tenant_admin', tenant_id: 'acme' });
  await traffic(server, seconds);
}

const MONTH = { currency: 'USD', calendar: 'month' };
const KEYS: { key: Record<string, unknown>; spend?: string; calls?: number; isDisabled?: boolean; isRotated?: boolean }[] = [
  { key: { name: 'search team', owner: 'ann', tenant_id: 'acme', tags: { team: 'search', env: 'prod' }, models: ['gpt-4o*'], limits: [{ limit: 600, window: '1m' }, { unit: 'tokens', limit: 2000000, calendar: 'day', timezone: 'Europe/Berlin' }], budget: { ...MONTH, amount: '250.00' } }, spend: '1.32', calls: 60, isRotated: true },
  { key: { name: 'support assistant', owner: 'bob', tenant_id: 'acme', tags: { team: 'support' }, models: ['gpt-4o-mini', 'claude-*'], limits: [{ limit: 120, window: '1m' }], budget: { ...MONTH, amount: '100.00' } }, spend: '4.4', calls: 20 },
  { key: { name: 'nightly evaluation', owner: 'cleo', tenant_id: 'globex', tags: { env: 'ci' }, budget: { ...MONTH, amount: '20.00', mode: 'soft' } }, spend: '5', calls: 4 },
  { key: { name: 'mobile app', tenant_id: 'hooli', limits: [{ limit: 3000, window: '1m' }, { unit: 'concurrency', limit: 50 }], expires_at: '2099-06-30T22:00:00Z' }, calls: 5 },
  { key: { name: 'hackathon', owner: 'dan', tenant_id: 'initech', tags: { event: 'spring' }, models: ['llama-70b', 'mixtral'], budget: { amount: '5.00', currency: 'EUR', window: '7d' } }, spend: '0.000123', calls: 2 },
  { key: { name: 'old integration', owner: 'eve', tenant_id: 'umbrella', limits: [{ limit: 60, window: '1m' }] }, isDisabled: true },
];

/** Virtual keys with a part of their budgets used. */
async function seedKeys(server: Server) {
  for (const { key, spend, calls = 0, isDisabled = false, isRotated = false } of KEYS) {
    const { id, secret } = await server.admin<{ id: string; secret: string }>('POST', 'keys', key);
    const { currency = 'USD' } = (key['budget'] as { currency?: string } | undefined) ?? {};
    for (let call = 0; call < calls; call += 1) await server.allow({ apiKey: secret, modelId: (key['models'] as string[] | undefined)?.[0]?.replace('*', '') ?? 'gpt-4o', ...(spend ? { money: { currency, amount: spend } } : {}) });
    if (isDisabled) await server.admin('POST', `keys/${id}/disable`);
    if (isRotated) await server.admin('POST', `keys/${id}/rotate`, { overlap: '1d' });
  }
}

/** A stream of requests with a rhythm of its own; the same every time. */
export async function traffic(server: Server, seconds: number) {
  let state = 7;
  const next = (below: number) => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return Math.floor((state / 2147483648) * below);
  };
  const pick = (from: string[]) => from[Math.min(next(from.length), next(from.length))] ?? '';
  for (let second = 0; second < seconds; second += 1) {
    const begun = Date.now();
    const requests = Array.from({ length: 90 + Math.round(50 * Math.sin(second / 6)) + next(30) }, (_, index) => {
      if (index % 31 === 0) return { ip: '198.51.100.23', endpoint: '/login', method: 'POST' };
      if (index % 47 === 0) return { ip: '203.0.113.9', userId: 'guest' };
      return { userId: pick(USERS), tenantId: pick(TENANTS), modelId: pick(MODELS), tokens: 20 + next(400), ip: `192.0.2.${String(next(200))}`, endpoint: '/v1/chat', method: 'POST' };
    });
    for (const request of requests.slice(0, 20)) await server.allow(request);
    await fetch(`${server.url}/rate-limit/allow/batch`, { method: 'POST', body: JSON.stringify({ requests: requests.slice(20) }) });
    if (second + 1 < seconds) await new Promise((resolve) => setTimeout(resolve, Math.max(0, 1000 - (Date.now() - begun))));
  }
}
