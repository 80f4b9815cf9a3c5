// Whether all nodes enforce the same rules, and what to do if they do not.
import type { Nodes } from '../api/types';
import { list, plural } from './format';

export type NodeBrief = Nodes['items'][number];

/** So much of a node's name distinguishes it from others. */
const ID_LETTERS = 6;

/** A node by its host; names are long numbers. */
export function nodeTitle({ host, node }: Pick<NodeBrief, 'host' | 'node'>): string {
  const id = node.slice(0, ID_LETTERS);
  return host === '' ? node : `${host} · ${id}`;
}

/** How a node stands to the others. */
export type Standing = 'current' | 'behind' | 'other' | 'kept';

export interface Agreement {
  state: 'agree' | 'behind' | 'other' | 'kept';
  /** A few words, for the overview. */
  short: string;
  /** What there is to see, in a sentence. */
  text: string;
  /** What to do about it; empty if nothing. */
  next: string;
  standing: Map<string, Standing>;
}

/** The owner of most nodes' rules; of the newest rules where that is even. */
function leadingOwner(nodes: NodeBrief[]): string | null {
  const owners = new Map<string | null, { count: number; newest: number }>();
  for (const { rules } of nodes) {
    const { count, newest } = owners.get(rules.owner) ?? { count: 0, newest: 0 };
    owners.set(rules.owner, { count: count + 1, newest: Math.max(newest, rules.revision) });
  }
  const [first] = [...owners].sort(([, a], [, b]) => b.count - a.count || b.newest - a.newest);
  return first?.[0] ?? null;
}

/** Revisions of one owner can be compared; those of another mean other rules. */
export function agreement(all: NodeBrief[]): Agreement {
  // What a node enforced that has gone is no matter any more.
  const nodes = all.filter(({ is_live: isLive }) => isLive);
  const owner = leadingOwner(nodes);
  const newest = Math.max(0, ...nodes.filter(({ rules }) => rules.owner === owner).map(({ rules }) => rules.revision));
  const standing = new Map(nodes.map(({ node, rules }): [string, Standing] => {
    if (rules.owner !== owner) return [node, 'other'];
    // Files of rules have revisions of their own.
    if (owner !== null && rules.revision < newest) return [node, 'behind'];
    return [node, rules.source === 'kept' ? 'kept' : 'current'];
  }));
  const standingAs = (wanted: Standing) => nodes.filter(({ node }) => standing.get(node) === wanted);
  const named = (wanted: Standing) => standingAs(wanted).map(nodeTitle);
  const [other, behind, kept] = [named('other'), named('behind'), named('kept')];
  const of = (some: string[]) => `${String(some.length)} of ${String(nodes.length)}`;
  const verb = (some: string[]) => (some.length === 1 ? 'has' : 'have');
  if (other.length > 0) {
    const text = `${list(other)} ${verb(other)} the rules of another owner: these nodes do not enforce what the others do.`;
    return { state: 'other', short: `${of(other)} with other rules`, text, next: 'Start all but one node with --role data, or give all of them one PostgreSQL.', standing };
  }
  if (behind.length > 0) {
    const revisions = standingAs('behind').map((one) => `${nodeTitle(one)} (revision ${String(one.rules.revision)})`);
    const text = `${list(revisions)} ${behind.length === 1 ? 'is' : 'are'} behind revision ${String(newest)}.`;
    return { state: 'behind', short: `${of(behind)} behind`, text, next: 'A node follows within a second. If this lasts, read its log, check that it reaches the database or the Redis that carries the rules, and restart it.', standing };
  }
  if (kept.length > 0) {
    const text = `${list(kept)} ${kept.length === 1 ? 'runs' : 'run'} on the rules that it last stored on its disk.`;
    return { state: 'kept', short: `${of(kept)} on stored rules`, text, next: 'Check that it reaches the database, or the Redis that carries the rules.', standing };
  }
  const text = nodes.length === 1 ? `This node enforces revision ${String(newest)}, and there is no other.` : `All ${plural(nodes.length, 'node')} enforce revision ${String(newest)}.`;
  return { state: 'agree', short: nodes.length === 1 ? 'no others' : 'all agree', text, next: '', standing };
}
