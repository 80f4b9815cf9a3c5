// What the admin API speaks of. The shapes come from openapi.json; `npm run types` makes schema.d.ts of it.
import type { components } from './schema';

type Schemas = components['schemas'];

export type Rule = Schemas['rules.rule'];
export type RuleLimit = Schemas['rules.limit'];
export type AppliesTo = Schemas['rules.applies_to'];
export type Quota = Schemas['rules.quota'];
export type Texts = Schemas['rules.texts'];
export type RuleEntry = Schemas['AdminRule'];
export type RuleVersion = Schemas['AdminVersion'];
export type ListEntry = Schemas['AdminListEntry'];
export type Tier = Schemas['AdminTier'];
export type ClientTier = Schemas['AdminClientTier'];
export type Grant = Schemas['AdminGrant'];
export type Setting = Schemas['AdminSetting'];
export type Token = Schemas['AdminToken'];
export type Secret = Schemas['AdminSecret'];
export type Identity = Schemas['AdminIdentity'];
export type SignInOptions = Schemas['AdminSignInOptions'];
export type DryRun = Schemas['AdminDryRun'];
export type ClientPage = Schemas['AdminClient'];
export type ClientLimit = ClientPage['limits'][number];
export type Limit = Schemas['AdminLimit'];
export type Explained = Schemas['AdminExplained'];
export type Tried = Schemas['AdminTried'];
export type Top = Schemas['AdminTop'];
export type Counted = Schemas['AdminCounted'];
export type History = Schemas['AdminHistory'];
export type Node = Schemas['AdminNode'];
export type Nodes = Schemas['AdminNodes'];
export type InstallationFigures = Schemas['AdminOverview'];
export type Incidents = Schemas['AdminIncidents'];
export type UsageReport = Schemas['AdminUsageReport'];
export type UsageRow = UsageReport['items'][number];
export type Problem = Schemas['ProblemBody'];
export type Attributes = Schemas['AllowBody'];
export type Decision = Schemas['DecisionBody'];
export type Role = Identity['role'];

/** A change in the audit log. */
export interface Change {
  id: number;
  timestamp: string;
  actor: string;
  action: string;
  kind: string;
  entry_id: string;
  tenant_id: string | null;
  version: number | null;
  revision: number | null;
  before: unknown;
  after: unknown;
  request_id: string | null;
  address: string | null;
}

/** A decision in the audit log. */
export type Decided = Schemas['AdminDecision'];

/** What a live stream sends once a second. */
export interface Pulse {
  node: string;
  at: string;
  enforcement: 'on' | 'shadow' | 'off';
  revision: number;
  stores_lost: string[];
  decisions: Node['decisions'];
}

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}

/** A request that a gateway keeps. */
export interface Queued {
  ticket: string;
  state: 'queued' | 'sending' | 'done' | 'failed';
  position?: number;
  enqueued_at: string;
  attempts: number;
  next_attempt_at?: string;
  finished_at?: string;
  error?: string;
  lane: string;
  request: string;
}

export interface QueuePage extends Page<Queued> {
  waiting: number;
  keys: number;
  oldest_seconds: number | null;
  done: number;
  dead: number;
}

/** A limit of a virtual key: one of a rule, with its own unit. */
export type KeyLimit = RuleLimit & Pick<Rule, 'unit' | 'currency' | 'slot_ttl'>;

/** What a virtual key may spend. */
export interface KeyBudget {
  amount: string | number;
  currency: string;
  calendar?: NonNullable<RuleLimit['calendar']>;
  timezone?: string;
  anchor_day?: number;
  window?: string;
  mode?: 'hard' | 'soft';
}

/** A virtual key. Its secret is there only in the answer that made it. */
export type VirtualKey = Omit<Schemas['AdminKey'], 'limits' | 'budget'> & { limits?: KeyLimit[] | null; budget?: KeyBudget | null };
