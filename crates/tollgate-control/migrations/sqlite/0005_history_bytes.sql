-- Versions of rules and the log of changes are bounded in bytes, too: their rules, and 256 bytes for the rest of a record.
ALTER TABLE history_usage ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
UPDATE history_usage SET bytes = (
    SELECT COALESCE(SUM(256 + COALESCE(OCTET_LENGTH(v.body), 0)), 0)
    FROM rate_limit_rule_versions v WHERE COALESCE(v.tenant_id, '') = history_usage.owner
) WHERE log = 'versions';
UPDATE history_usage SET bytes = (
    SELECT COALESCE(SUM(256 + COALESCE(OCTET_LENGTH(a.before), 0) + COALESCE(OCTET_LENGTH(a.after), 0)), 0)
    FROM admin_audit_log a WHERE a.owner = history_usage.owner
) WHERE log = 'changes';
