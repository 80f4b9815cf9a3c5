-- What was decided, clients' extra quota, and settings of the whole installation.

CREATE TABLE rate_limit_grants (
    grant_id TEXT COLLATE "C" PRIMARY KEY,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT COLLATE "C",
    rule_id TEXT COLLATE "C",
    identifier_type TEXT COLLATE "C",
    identifier TEXT COLLATE "C",
    expires_at TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL
);

CREATE TABLE settings (
    name TEXT COLLATE "C" PRIMARY KEY,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL
);

CREATE TABLE rate_limit_audit_log (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id TEXT COLLATE "C" NOT NULL UNIQUE,
    timestamp BIGINT NOT NULL,
    action TEXT COLLATE "C" NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    client_id TEXT COLLATE "C" NOT NULL,
    rule_id TEXT COLLATE "C",
    scope TEXT COLLATE "C",
    request_count BIGINT,
    limit_count BIGINT,
    retry_after_ms BIGINT,
    endpoint TEXT COLLATE "C",
    method TEXT COLLATE "C",
    ip_address TEXT COLLATE "C",
    user_id TEXT COLLATE "C",
    tenant_id TEXT COLLATE "C",
    api_key_id TEXT COLLATE "C",
    model_id TEXT COLLATE "C",
    request_id TEXT COLLATE "C",
    cost BIGINT NOT NULL,
    node TEXT COLLATE "C" NOT NULL,
    revision BIGINT NOT NULL
);
CREATE INDEX rate_limit_audit_log_by_client ON rate_limit_audit_log (client_id, timestamp);
CREATE INDEX rate_limit_audit_log_by_action ON rate_limit_audit_log (action, timestamp);
CREATE INDEX rate_limit_audit_log_by_request ON rate_limit_audit_log (request_id);
CREATE INDEX rate_limit_audit_log_by_tenant ON rate_limit_audit_log (tenant_id, id);
-- Retention looks for the oldest.
CREATE INDEX rate_limit_audit_log_by_time ON rate_limit_audit_log (timestamp);
