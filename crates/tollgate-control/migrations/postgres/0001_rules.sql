-- Rules, lists, tiers, admin tokens, and what was changed. Times are milliseconds since 1970.
-- Text is compared byte by byte (COLLATE "C"): pages and prefixes then go the same way in every database.

-- One row: which database this is, and how often its rule set was changed.
CREATE TABLE control_state (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    installation TEXT COLLATE "C" NOT NULL,
    revision BIGINT NOT NULL
);
INSERT INTO control_state (id, installation, revision) VALUES (1, replace(CAST(gen_random_uuid() AS TEXT), '-', ''), 0);

CREATE TABLE rate_limit_rules (
    rule_id TEXT COLLATE "C" PRIMARY KEY,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT COLLATE "C",
    name TEXT COLLATE "C",
    is_active BOOLEAN,
    priority BIGINT,
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL
);

-- Never changed; a version without a body is a deletion.
CREATE TABLE rate_limit_rule_versions (
    rule_id TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    body TEXT,
    tenant_id TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (rule_id, version)
);

CREATE TABLE user_tiers (
    name TEXT COLLATE "C" PRIMARY KEY,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT COLLATE "C",
    is_default BOOLEAN,
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL
);

-- There may be millions: no body, which would say the same again.
CREATE TABLE client_tiers (
    id TEXT COLLATE "C" PRIMARY KEY,
    identifier_type TEXT COLLATE "C" NOT NULL,
    identifier TEXT COLLATE "C" NOT NULL,
    tier TEXT COLLATE "C" NOT NULL REFERENCES user_tiers (name),
    bucket BIGINT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL
);
CREATE INDEX client_tiers_by_tier ON client_tiers (tier, id);
CREATE INDEX client_tiers_by_bucket ON client_tiers (bucket);
CREATE INDEX client_tiers_by_tenant ON client_tiers (tenant_id, id) WHERE tenant_id IS NOT NULL;

-- The revision at which a bucket of client_tiers last changed. All buckets are there from the start.
CREATE TABLE client_tier_buckets (
    bucket BIGINT PRIMARY KEY,
    revision BIGINT NOT NULL
);
INSERT INTO client_tier_buckets (bucket, revision)
SELECT number, 0 FROM generate_series(0, 255) AS numbers (number);

CREATE TABLE rate_limit_whitelist (
    id TEXT COLLATE "C" PRIMARY KEY,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT COLLATE "C",
    identifier_type TEXT COLLATE "C",
    identifier TEXT COLLATE "C",
    reason TEXT COLLATE "C",
    expires_at TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL
);

CREATE TABLE rate_limit_blacklist (
    id TEXT COLLATE "C" PRIMARY KEY,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT COLLATE "C",
    identifier_type TEXT COLLATE "C",
    identifier TEXT COLLATE "C",
    reason TEXT COLLATE "C",
    expires_at TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL
);

CREATE TABLE admin_tokens (
    token_id TEXT COLLATE "C" PRIMARY KEY,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT COLLATE "C",
    name TEXT COLLATE "C",
    role TEXT COLLATE "C",
    digest TEXT COLLATE "C" NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL
);

CREATE TABLE admin_audit_log (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    timestamp BIGINT NOT NULL,
    actor TEXT COLLATE "C" NOT NULL,
    token_id TEXT COLLATE "C" NOT NULL,
    action TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    entry_id TEXT COLLATE "C" NOT NULL,
    tenant_id TEXT COLLATE "C",
    version BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    before TEXT,
    after TEXT,
    request_id TEXT COLLATE "C",
    ip_address TEXT COLLATE "C"
);
CREATE INDEX admin_audit_log_by_entry ON admin_audit_log (kind, entry_id, id);
CREATE INDEX admin_audit_log_by_request ON admin_audit_log (request_id);
CREATE INDEX admin_audit_log_by_tenant ON admin_audit_log (tenant_id, id);
