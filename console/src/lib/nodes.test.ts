import { describe, expect, it } from 'vitest';
import { agreement, type NodeBrief, nodeTitle } from './nodes';

function node(name: string, revision: number, owner: string | null = 'a', source = 'database'): NodeBrief {
  const decisions = { allowed: 0, denied: 0, throttled: 0, queued: 0, would_deny: 0 };
  const load = { decisions, decisions_per_second: 0, cpu: 0, p50_ms: null, p95_ms: null, p99_ms: null };
  const seen = { is_live: true, is_stopped: false, last_seen: '2027-01-31T09:30:00Z', gone_since: null };
  return { node: name, host: '', role: 'all', version: '0.1.0', enforcement: 'on', uptime_seconds: 9, stores: [], rules: { count: 1, owner, revision, source }, ...load, ...seen };
}

describe('nodes', () => {
  it('agree where all have the newest rules', () => {
    const { state, short, text, next } = agreement([node('n1', 7), node('n2', 7), node('n3', 7)]);
    expect([state, short, text, next]).toEqual(['agree', 'all agree', 'All 3 nodes enforce revision 7.', '']);
    expect(agreement([node('n1', 7)]).text).toBe('This node enforces revision 7, and there is no other.');
    expect(agreement([]).state).toBe('agree');
  });

  it('are behind with older rules of the same owner', () => {
    const { state, short, text, next, standing } = agreement([node('n1', 7), node('n2', 5), node('n3', 7)]);
    expect([state, short, text]).toEqual(['behind', '1 of 3 behind', 'n2 (revision 5) is behind revision 7.']);
    expect(next).toContain('read its log');
    expect([...standing]).toEqual([['n1', 'current'], ['n2', 'behind'], ['n3', 'current']]);
  });

  it('with rules of another owner are not compared by revision', () => {
    const { state, text, next, standing } = agreement([node('n1', 7), node('n2', 90, 'b'), node('n3', 7)]);
    expect(state).toBe('other');
    expect(text).toBe('n2 has the rules of another owner: these nodes do not enforce what the others do.');
    expect(next).toContain('--role data');
    expect([...standing.values()]).toEqual(['current', 'other', 'current']);
  });

  it('that have gone are not compared', () => {
    const gone = { ...node('n3', 2), is_live: false, gone_since: '2027-01-31T09:30:00Z' };
    expect(agreement([node('n1', 7), node('n2', 7), gone]).text).toBe('All 2 nodes enforce revision 7.');
    expect(nodeTitle({ host: 'web-1', node: '0123456789abcdef' })).toBe('web-1 · 012345');
    expect(nodeTitle({ host: '', node: 'old' })).toBe('old');
  });

  it('with rule files are not compared', () => {
    expect(agreement([node('n1', 7, null, 'file'), node('n2', 2, null, 'file')]).state).toBe('agree');
  });

  it('that run on stored rules are named', () => {
    const { state, text } = agreement([node('n1', 7), node('n2', 7, 'a', 'kept')]);
    expect([state, text]).toEqual(['kept', 'n2 runs on the rules that it last stored on its disk.']);
  });
});
