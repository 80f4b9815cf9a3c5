-- What was decided, clients' extra quota, and settings of the whole installation.

CREATE TABLE rate_limit_grants (
    grant_id TEXT PRIMARY KEY NOT NULL,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT,
    rule_id TEXT,
    identifier_type TEXT,
    identifier TEXT,
    expires_at TEXT,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE settings (
    name TEXT PRIMARY KEY NOT NULL,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE rate_limit_audit_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE,
    timestamp BIGINT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT NOT NULL,
    client_id TEXT NOT NULL,
    rule_id TEXT,
    scope TEXT,
    request_count BIGINT,
    limit_count BIGINT,
    retry_after_ms BIGINT,
    endpoint TEXT,
    method TEXT,
    ip_address TEXT,
    user_id TEXT,
    tenant_id TEXT,
    api_key_id TEXT,
    model_id TEXT,
    request_id TEXT,
    cost BIGINT NOT NULL,
    node TEXT NOT NULL,
    revision BIGINT NOT NULL
);
CREATE INDEX rate_limit_audit_log_by_client ON rate_limit_audit_log (client_id, timestamp);
CREATE INDEX rate_limit_audit_log_by_action ON rate_limit_audit_log (action, timestamp);
CREATE INDEX rate_limit_audit_log_by_request ON rate_limit_audit_log (request_id);
CREATE INDEX rate_limit_audit_log_by_tenant ON rate_limit_audit_log (tenant_id, id);
-- Retention looks for the oldest.
CREATE INDEX rate_limit_audit_log_by_time ON rate_limit_audit_log (timestamp);
