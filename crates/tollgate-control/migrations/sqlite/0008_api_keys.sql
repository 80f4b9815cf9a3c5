-- Virtual keys. Secrets are kept as SHA-256 in hex. The body says all of a key; columns repeat what is searched for.
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY NOT NULL,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT,
    name TEXT,
    owner TEXT,
    digest TEXT NOT NULL UNIQUE,
    expires_at TEXT,
    disabled_at TEXT,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL
);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id, id) WHERE tenant_id IS NOT NULL;
CREATE INDEX api_keys_by_owner ON api_keys (owner, id) WHERE owner IS NOT NULL;

-- The revision at which a bucket of keys last changed: the keys whose ids have the same first two digits.
CREATE TABLE api_key_buckets (
    bucket BIGINT PRIMARY KEY NOT NULL,
    revision BIGINT NOT NULL
);
INSERT INTO api_key_buckets (bucket, revision)
WITH RECURSIVE numbers (number) AS (
    SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < 255
)
SELECT number, 0 FROM numbers;
