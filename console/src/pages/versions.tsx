// What a rule was, and how to go back.
import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { all, call, segment } from '../api/client';
import { useMay } from '../api/session';
import type { RuleEntry, RuleVersion } from '../api/types';
import { instant } from '../lib/format';
import { printRule } from '../lib/rule';
import { headline } from '../lib/ruleSummary';
import { DiffView } from '../ui/diffview';
import { Badge, Button, Card, Confirm, Load } from '../ui/parts';
import { toast } from '../ui/toast';

export function Versions({ id, current }: { id: string; current: RuleEntry | null }) {
  const versions = useAsk({ queryKey: ['versions', id], queryFn: ({ signal }) => all<RuleVersion>(`rules/${segment(id)}/versions`, {}, signal) });
  return (
    <Card title="Versions" about="The newest first. Each can be put back, as a new version.">
      <Load query={versions}>
        {(list) => (
          <ol className="versions">
            {list.map((version, index) => (
              <Version key={version.version} version={version} before={list[index + 1] ?? null} current={current} isNewest={index === 0} />
            ))}
          </ol>
        )}
      </Load>
    </Card>
  );
}

const text = (version: RuleVersion | null) => (version?.rule ? printRule(version.rule) : '');

function Version({ version, before, current, isNewest }: { version: RuleVersion; before: RuleVersion | null; current: RuleEntry | null; isNewest: boolean }) {
  const { rules: mayChange } = useMay();
  const queries = useQueryClient();
  const [asking, setAsking] = useState(false);
  const back = useMutation({
    mutationFn: () => call<RuleEntry>('POST', `rules/${segment(version.rule_id)}/rollback`, { body: { version: version.version }, ...(current ? { ifVersion: current.version } : {}) }),
    onSuccess: (entry) => {
      toast(`${version.rule_id} is as it was in version ${String(version.version)}.`);
      setAsking(false);
      queries.setQueryData(['rule', version.rule_id], entry);
      void queries.invalidateQueries({ queryKey: ['versions', version.rule_id] });
      void queries.invalidateQueries({ queryKey: ['rules'] });
    },
  });
  return (
    <li>
      <div className="version-head">
        <div>
          <b>Version {version.version}</b> {isNewest && <Badge tone="info">{version.rule ? 'in force' : 'deleted'}</Badge>}
          <p className="muted">{version.created_by} · {instant(version.created_at)}</p>
        </div>
        {mayChange && !isNewest && version.rule && <Button icon="reset" onClick={() => setAsking(true)} aria-label={`Roll back to version ${String(version.version)}`}>Roll back</Button>}
      </div>
      <p>{version.rule ? headline(version.rule) : 'The rule was deleted.'}</p>
      <details>
        <summary>{before ? `What changed from version ${String(before.version)}` : 'What it began with'}</summary>
        <DiffView before={text(before)} after={text(version)} label={`Changes of version ${String(version.version)}`} />
      </details>
      {asking && (
        <Confirm title={`Roll back to version ${String(version.version)}?`} verb="Roll back" danger={false} busy={back.isPending} error={back.error} onConfirm={() => back.mutate()} onClose={() => setAsking(false)}>
          <p>It becomes a new version, in force at once.</p>
          <DiffView before={current ? printRule(current.rule) : ''} after={text(version)} label="What changes" />
        </Confirm>
      )}
    </li>
  );
}
