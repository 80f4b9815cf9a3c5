-- Repeated decisions are one record, and the log is bounded in bytes with shares of tenants.

-- How many decisions a record stands for, how many of them are also kept in full, and when the first was made. Absent
-- where the record is one decision.
ALTER TABLE rate_limit_audit_log ADD COLUMN repeat_count BIGINT;
ALTER TABLE rate_limit_audit_log ADD COLUMN kept_count BIGINT;
ALTER TABLE rate_limit_audit_log ADD COLUMN first_at BIGINT;
-- What a record takes, indexes included, as an estimate from above.
ALTER TABLE rate_limit_audit_log ADD COLUMN bytes BIGINT NOT NULL DEFAULT 1024;

-- What the records of each tenant take; those without one under ''.
CREATE TABLE rate_limit_audit_usage (
    tenant_id TEXT PRIMARY KEY NOT NULL,
    bytes BIGINT NOT NULL
);
INSERT INTO rate_limit_audit_usage (tenant_id, bytes)
    SELECT COALESCE(tenant_id, ''), SUM(bytes) FROM rate_limit_audit_log GROUP BY COALESCE(tenant_id, '');
