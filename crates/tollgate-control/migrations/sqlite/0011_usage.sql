-- The ledger: what was used on each day (days since 1970-01-01 in UTC), in whole rows. A value that is not known is ''.
-- Money is in 1e-9 of a unit.
CREATE TABLE usage_days (
    day BIGINT NOT NULL,
    tenant_id TEXT NOT NULL,
    api_key_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    model_id TEXT NOT NULL,
    currency TEXT NOT NULL,
    requests BIGINT NOT NULL,
    refusals BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cached_read_tokens BIGINT NOT NULL,
    cached_write_tokens BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL,
    audio_tokens BIGINT NOT NULL,
    images BIGINT NOT NULL,
    nanos BIGINT NOT NULL,
    PRIMARY KEY (day, tenant_id, api_key_id, user_id, model_id, currency)
);
CREATE INDEX usage_days_by_tenant ON usage_days (tenant_id, day);

-- The events that are part of the ledger: an event that is delivered again changes nothing.
CREATE TABLE usage_events (
    event_id TEXT PRIMARY KEY NOT NULL,
    recorded_at BIGINT NOT NULL
);
CREATE INDEX usage_events_by_time ON usage_events (recorded_at);

-- What was admitted and has not been settled. It becomes part of the ledger as estimated when it expires.
CREATE TABLE usage_open (
    event_id TEXT PRIMARY KEY NOT NULL,
    expires_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX usage_open_by_end ON usage_open (expires_at);
