-- Versions of rules and the log of changes are bounded, and what is removed leaves a checkpoint.

-- Who made the change: the tenant of the token, '' for the installation's own. Until now that was not kept, so changes
-- of tenants' rules count as made by the tenants.
ALTER TABLE admin_audit_log ADD COLUMN owner TEXT NOT NULL DEFAULT '';
UPDATE admin_audit_log SET owner = tenant_id WHERE tenant_id IS NOT NULL AND kind = 'rule';
CREATE INDEX admin_audit_log_by_owner ON admin_audit_log (owner, id);
CREATE INDEX rate_limit_rule_versions_by_tenant ON rate_limit_rule_versions (tenant_id, created_at, rule_id, version);

-- How many records there are: of 'versions' by the tenant of the rule, of 'changes' by who made them.
CREATE TABLE history_usage (
    log TEXT NOT NULL,
    owner TEXT NOT NULL,
    records BIGINT NOT NULL,
    PRIMARY KEY (log, owner)
);
INSERT INTO history_usage (log, owner, records)
    SELECT 'changes', owner, COUNT(*) FROM admin_audit_log GROUP BY owner;
INSERT INTO history_usage (log, owner, records)
    SELECT 'versions', COALESCE(tenant_id, ''), COUNT(*) FROM rate_limit_rule_versions GROUP BY COALESCE(tenant_id, '');

-- What was removed: how many, from which number to which, from when until when, and a digest of all of it in order. Of
-- 'versions' one for each rule, and one under '' for all rules of which nothing is left; of 'changes' one.
CREATE TABLE history_checkpoints (
    log TEXT NOT NULL,
    owner TEXT NOT NULL,
    entry_id TEXT NOT NULL,
    removed BIGINT NOT NULL,
    first_number BIGINT NOT NULL,
    last_number BIGINT NOT NULL,
    from_at BIGINT NOT NULL,
    until_at BIGINT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (log, owner, entry_id)
);
CREATE INDEX history_checkpoints_by_entry ON history_checkpoints (log, entry_id);
