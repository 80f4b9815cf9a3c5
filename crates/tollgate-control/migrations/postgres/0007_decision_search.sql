-- Decisions are searched by time and by each attribute, the newest first, and would-deny outcomes are kept.

-- The window of the deciding limit, and the rules that would have refused the request, one on each line.
ALTER TABLE rate_limit_audit_log ADD COLUMN window_seconds BIGINT;
ALTER TABLE rate_limit_audit_log ADD COLUMN would_deny TEXT COLLATE "C";

CREATE INDEX rate_limit_audit_log_by_user ON rate_limit_audit_log (user_id, timestamp) WHERE user_id IS NOT NULL;
CREATE INDEX rate_limit_audit_log_by_ip ON rate_limit_audit_log (ip_address, timestamp) WHERE ip_address IS NOT NULL;
CREATE INDEX rate_limit_audit_log_by_api_key ON rate_limit_audit_log (api_key_id, timestamp) WHERE api_key_id IS NOT NULL;
CREATE INDEX rate_limit_audit_log_by_rule ON rate_limit_audit_log (rule_id, timestamp) WHERE rule_id IS NOT NULL;
CREATE INDEX rate_limit_audit_log_by_scope ON rate_limit_audit_log (scope, timestamp) WHERE scope IS NOT NULL;
CREATE INDEX rate_limit_audit_log_by_model ON rate_limit_audit_log (model_id, timestamp) WHERE model_id IS NOT NULL;
CREATE INDEX rate_limit_audit_log_by_endpoint ON rate_limit_audit_log (endpoint, timestamp) WHERE endpoint IS NOT NULL;
CREATE INDEX rate_limit_audit_log_by_tenant_time ON rate_limit_audit_log (tenant_id, timestamp) WHERE tenant_id IS NOT NULL;
CREATE INDEX rate_limit_audit_log_by_reason ON rate_limit_audit_log (reason, timestamp);

-- Records from before keep the bytes they were counted with. To change them all would rewrite the log, and would delete
-- the oldest ones of a log that is near its bound.
