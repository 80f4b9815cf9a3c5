-- Rules, lists, tiers, admin tokens, and what was changed. Times are milliseconds since 1970.

-- One row: which database this is, and how often its rule set was changed.
CREATE TABLE control_state (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    installation TEXT NOT NULL,
    revision BIGINT NOT NULL
);
INSERT INTO control_state (id, installation, revision) VALUES (1, lower(hex(randomblob(16))), 0);

CREATE TABLE rate_limit_rules (
    rule_id TEXT PRIMARY KEY NOT NULL,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT,
    name TEXT,
    is_active BOOLEAN,
    priority BIGINT,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL
);

-- Never changed; a version without a body is a deletion.
CREATE TABLE rate_limit_rule_versions (
    rule_id TEXT NOT NULL,
    version BIGINT NOT NULL,
    body TEXT,
    tenant_id TEXT,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (rule_id, version)
);

CREATE TABLE user_tiers (
    name TEXT PRIMARY KEY NOT NULL,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT,
    is_default BOOLEAN,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL
);

-- There may be millions: no body, which would say the same again.
CREATE TABLE client_tiers (
    id TEXT PRIMARY KEY NOT NULL,
    identifier_type TEXT NOT NULL,
    identifier TEXT NOT NULL,
    tier TEXT NOT NULL REFERENCES user_tiers (name),
    bucket BIGINT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX client_tiers_by_tier ON client_tiers (tier, id);
CREATE INDEX client_tiers_by_bucket ON client_tiers (bucket);
CREATE INDEX client_tiers_by_tenant ON client_tiers (tenant_id, id) WHERE tenant_id IS NOT NULL;

-- The revision at which a bucket of client_tiers last changed. All buckets are there from the start.
CREATE TABLE client_tier_buckets (
    bucket BIGINT PRIMARY KEY NOT NULL,
    revision BIGINT NOT NULL
);
INSERT INTO client_tier_buckets (bucket, revision)
WITH RECURSIVE numbers (number) AS (
    SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < 255
)
SELECT number, 0 FROM numbers;

CREATE TABLE rate_limit_whitelist (
    id TEXT PRIMARY KEY NOT NULL,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT,
    identifier_type TEXT,
    identifier TEXT,
    reason TEXT,
    expires_at TEXT,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE rate_limit_blacklist (
    id TEXT PRIMARY KEY NOT NULL,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT,
    identifier_type TEXT,
    identifier TEXT,
    reason TEXT,
    expires_at TEXT,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE admin_tokens (
    token_id TEXT PRIMARY KEY NOT NULL,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT,
    name TEXT,
    role TEXT,
    digest TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE admin_audit_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    timestamp BIGINT NOT NULL,
    actor TEXT NOT NULL,
    token_id TEXT NOT NULL,
    action TEXT NOT NULL,
    kind TEXT NOT NULL,
    entry_id TEXT NOT NULL,
    tenant_id TEXT,
    version BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    before TEXT,
    after TEXT,
    request_id TEXT,
    ip_address TEXT
);
CREATE INDEX admin_audit_log_by_entry ON admin_audit_log (kind, entry_id, id);
CREATE INDEX admin_audit_log_by_request ON admin_audit_log (request_id);
CREATE INDEX admin_audit_log_by_tenant ON admin_audit_log (tenant_id, id);
