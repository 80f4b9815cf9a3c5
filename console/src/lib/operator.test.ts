import { expect, test } from 'vitest';
import { EMPTY, MAX_ROWS, next } from '../api/feed';
import type { Change, Decided } from '../api/types';
import { contextOf, fromKey, grantee, identitiesOf, searchOf } from './subject';
import { marksOf } from './timeline';

const row = (id: number) => ({ id }) as Decided;

test('a feed holds the newest rows, and those of a pause until it ends', () => {
  let feed = next(EMPTY, { kind: 'received', items: [row(2), row(1)], skipped: 3 });
  feed = next(feed, { kind: 'pause', isPaused: true });
  feed = next(feed, { kind: 'received', items: [row(3)], skipped: 1 });
  expect([feed.rows.length, feed.waiting.length, feed.skipped, feed.state]).toEqual([2, 1, 4, 'live']);
  feed = next(feed, { kind: 'pause', isPaused: false });
  expect(feed.rows.map(({ id }) => id)).toEqual([3, 2, 1]);
  for (let at = 0; at < 50; at += 1) feed = next(feed, { kind: 'received', items: Array.from({ length: 50 }, () => row(at)), skipped: 0 });
  expect(feed.rows.length).toBe(MAX_ROWS);
});

test('a key is searched by one identity and its model', () => {
  const subject = fromKey('k', { user_id: 'ann', ip: '192.0.2.1', model_id: 'm', other: 'x' }, 'r');
  expect(searchOf(subject, true)).toEqual({ user_id: 'ann', model_id: 'm', rule_id: 'r' });
  expect(identitiesOf(subject).map(({ type }) => type)).toEqual(['user_id', 'ip']);
  expect(contextOf(subject, 'user_id')).toEqual({ ip: '192.0.2.1', model_id: 'm' });
});

test('more is given to what the rule counts by', () => {
  const clients = [{ type: 'user_id', id: 'ann' }, { type: 'tenant_id', id: 'acme' }] as const;
  const to = (rule: Parameters<typeof grantee>[0]) => grantee(rule, [...clients])?.id;
  expect(to({ identifier_type: 'tenant_id' })).toBe('acme');
  expect(to({ identifier_type: 'composite', key_by: ['model_id', 'tenant_id'] })).toBe('acme');
  expect(to({ identifier_type: 'global' })).toBeUndefined();
  expect(to(null)).toBe('ann');
});

test('incidents and changes have their place in the span', () => {
  const at = (seconds: number) => new Date(seconds * 1000).toISOString();
  const incident = (since: number, until: number | null) => ({ kind: 'store', title: 't', text: '', next_step: '', since: at(since), until: until === null ? null : at(until) });
  const change = { id: 1, timestamp: at(150), actor: 'a', action: 'rule.update', kind: 'rule', entry_id: 'r/1' } as Change;
  const marks = marksOf([incident(50, 60), incident(90, 120), incident(180, null)], [change, { ...change, id: 2, timestamp: at(99) }], 100, 200);
  expect(marks.map(({ left, width, isOpen }) => [left, width, isOpen])).toEqual([[80, 20, true], [50, 0, false], [0, 20, false]]);
  expect(marks[1]?.href).toBe('/rules/r%2F1?tab=versions');
});
