-- The log of changes is a hash chain whose head is signed. Records from before have no number; the genesis covers them.
ALTER TABLE admin_audit_log ADD COLUMN chain_number BIGINT;
ALTER TABLE admin_audit_log ADD COLUMN chain_hash TEXT COLLATE "C";
CREATE UNIQUE INDEX admin_audit_log_by_chain ON admin_audit_log (chain_number) WHERE chain_number IS NOT NULL;
CREATE INDEX admin_audit_log_unchained ON admin_audit_log (id) WHERE chain_number IS NULL;

-- One row, which the program adds: hashes are not computed in SQL.
CREATE TABLE audit_chain (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    earlier BIGINT NOT NULL,
    earlier_last_id BIGINT NOT NULL,
    earlier_digest TEXT COLLATE "C" NOT NULL,
    genesis_hash TEXT COLLATE "C" NOT NULL,
    earlier_left BIGINT NOT NULL,
    number BIGINT NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    public_key TEXT COLLATE "C" NOT NULL,
    signature TEXT COLLATE "C" NOT NULL
);

-- Changes that were removed to keep a bound. Neighbours are one row, so that there are at most as many as changes.
CREATE TABLE audit_chain_removed (
    first_number BIGINT PRIMARY KEY,
    last_number BIGINT NOT NULL UNIQUE,
    previous_hash TEXT COLLATE "C" NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    public_key TEXT COLLATE "C" NOT NULL,
    signature TEXT COLLATE "C" NOT NULL
);
