-- The log of decisions has shares of callers, and of tenants within them: a caller can invent tenants.

-- The digest of a token or certificate, else an address; '' where the node itself identified the client.
ALTER TABLE rate_limit_audit_log ADD COLUMN caller TEXT COLLATE "C" NOT NULL DEFAULT '';

-- What the records of each caller and tenant take; those without a tenant under ''. Nodes of the version before still
-- count in rate_limit_audit_usage.
CREATE TABLE rate_limit_audit_shares (
    caller TEXT COLLATE "C" NOT NULL,
    tenant_id TEXT COLLATE "C" NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (caller, tenant_id)
);
INSERT INTO rate_limit_audit_shares (caller, tenant_id, bytes)
    SELECT '', COALESCE(tenant_id, ''), SUM(bytes) FROM rate_limit_audit_log GROUP BY COALESCE(tenant_id, '');
