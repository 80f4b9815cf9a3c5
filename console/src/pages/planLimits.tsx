// The limit of each plan, as a table. An empty field means that the plan has the rule's own limit.
import { useQuery as useAsk } from '@tanstack/react-query';
import { useId, useState } from 'react';
import { all } from '../api/client';
import { useMay } from '../api/session';
import type { RuleLimit, Tier } from '../api/types';
import { limitWith, quotaOf } from '../lib/rule';
import { Button } from '../ui/parts';

export function PlanLimits({ limit, fault, onChange }: { limit: RuleLimit; fault: string | undefined; onChange: (limit: RuleLimit) => void }) {
  const { view } = useMay();
  const title = useId();
  const tiers = useAsk({ queryKey: ['tiers'], queryFn: ({ signal }) => all<Tier>('tiers', {}, signal), enabled: view });
  const [added, setAdded] = useState<string[]>([]);
  const own = limit.tier_limits ?? {};
  const known = tiers.data ?? [];
  const names = [...new Set([...known.map(({ name }) => name), ...Object.keys(own), ...added])];
  const put = (name: string, text: string) => {
    const next = { ...own };
    const quota = quotaOf(text);
    if (quota === undefined) Reflect.deleteProperty(next, name);
    else next[name] = quota;
    onChange(limitWith(limit, 'tier_limits', Object.keys(next).length === 0 ? undefined : next));
  };
  return (
    <div className="field wide">
      <span id={title} className="field-name">By plan</span>
      {names.length > 0 && (
        <table className="plain plan-limits" aria-labelledby={title}>
          <thead>
            <tr>
              <th scope="col">Plan</th>
              <th scope="col">How many instead</th>
            </tr>
          </thead>
          <tbody>
            {names.map((name) => (
              <tr key={name}>
                <th scope="row">{name}{known.find((one) => one.name === name)?.is_default && <small> default</small>}</th>
                <td><input aria-label={`Limit of the plan ${name}`} value={String(own[name] ?? '')} placeholder={`as above: ${String(limit.limit ?? '')}`} spellCheck={false} onChange={(event) => put(name, event.target.value)} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {known.length === 0 && <AddPlan taken={names} onAdd={(name) => setAdded([...added, name])} />}
      <p className={fault ? 'note fault' : 'note'}>{fault ?? (names.length > 0 ? 'A number, 0 to suspend, or unlimited. Empty: the limit above.' : 'Plans can have limits of their own.')}</p>
    </div>
  );
}

/** A name that cannot be chosen from a list: there is none, or its reader may not see it. */
function AddPlan({ taken, onAdd }: { taken: string[]; onAdd: (name: string) => void }) {
  const [name, setName] = useState('');
  const trimmed = name.trim();
  return (
    <div className="add-plan">
      <input aria-label="Name of a plan" value={name} placeholder="pro" spellCheck={false} onChange={(event) => setName(event.target.value)} />
      <Button icon="plus" disabled={trimmed === '' || taken.includes(trimmed)} onClick={() => { onAdd(trimmed); setName(''); }}>Add a plan</Button>
    </div>
  );
}
