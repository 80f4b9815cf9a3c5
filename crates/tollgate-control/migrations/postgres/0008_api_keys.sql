-- Virtual keys. Secrets are kept as SHA-256 in hex. The body says all of a key; columns repeat what is searched for.
CREATE TABLE api_keys (
    id TEXT COLLATE "C" PRIMARY KEY,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    tenant_id TEXT COLLATE "C",
    name TEXT COLLATE "C",
    owner TEXT COLLATE "C",
    digest TEXT COLLATE "C" NOT NULL UNIQUE,
    expires_at TEXT COLLATE "C",
    disabled_at TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL
);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id, id) WHERE tenant_id IS NOT NULL;
CREATE INDEX api_keys_by_owner ON api_keys (owner, id) WHERE owner IS NOT NULL;

-- The revision at which a bucket of keys last changed: the keys whose ids have the same first two digits.
CREATE TABLE api_key_buckets (
    bucket BIGINT PRIMARY KEY,
    revision BIGINT NOT NULL
);
INSERT INTO api_key_buckets (bucket, revision)
SELECT number, 0 FROM generate_series(0, 255) AS numbers (number);
