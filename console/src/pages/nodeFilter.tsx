// Whose figures are shown: those of all nodes, or of one.
import { useNodes } from '../api/nodes';
import type { History } from '../api/types';
import { plural } from '../lib/format';
import { nodeTitle } from '../lib/nodes';

export function NodeFilter({ node, onNode }: { node: string | null; onNode: (node: string | null) => void }) {
  const nodes = useNodes();
  const items = nodes.data?.items ?? [];
  // One node is the installation.
  if (items.length < 2 && node === null) return <>What this node decided.</>;
  const live = items.filter(({ is_live: isLive }) => isLive).length;
  return (
    <label className="node-filter">
      What was decided by{' '}
      <select value={node ?? ''} onChange={(event) => onNode(event.target.value === '' ? null : event.target.value)}>
        <option value="">all {plural(live, 'node')}</option>
        {items.map((one) => <option key={one.node} value={one.node}>{nodeTitle(one)}{one.is_live ? '' : ' (gone)'}</option>)}
        {node !== null && !items.some((one) => one.node === node) && <option value={node}>{node}</option>}
      </select>
    </label>
  );
}

/** Says so if the figures of any node are missing. */
export function Missing({ history }: { history: History | undefined }) {
  if (!history || (history.problem === null && history.nodes_unread === 0)) return null;
  const text = history.problem ?? `${plural(history.nodes_unread, 'node')} cannot be read, and ${history.nodes_unread === 1 ? 'is' : 'are'} missing here: another version may run there.`;
  return <p className="banner warn" role="status">{text.charAt(0).toUpperCase() + text.slice(1)}</p>;
}
