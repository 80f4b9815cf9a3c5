-- Version 2: how many bytes are kept, in all, for each tenant and for each lane.

ALTER TABLE entries ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE entries ADD COLUMN request_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE entries ADD COLUMN response_bytes INTEGER NOT NULL DEFAULT 0;

-- kind: 0 a lane's requests, 1 a tenant's, 2 all requests, 3 all answers.
CREATE TABLE usage (
    kind  INTEGER NOT NULL,
    name  TEXT    NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
INSERT INTO usage (kind, name, bytes) VALUES (2, '', 0), (3, '', 0);

CREATE TRIGGER entries_counted AFTER INSERT ON entries BEGIN
    INSERT INTO usage (kind, name, bytes) VALUES
        (0, NEW.lane, NEW.request_bytes), (1, NEW.tenant, NEW.request_bytes), (2, '', NEW.request_bytes)
        ON CONFLICT (kind, name) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER entries_recounted AFTER UPDATE OF request_bytes, response_bytes ON entries BEGIN
    UPDATE usage SET bytes = bytes + NEW.request_bytes - OLD.request_bytes
        WHERE (kind = 0 AND name = NEW.lane) OR (kind = 1 AND name = NEW.tenant) OR (kind = 2 AND name = '');
    UPDATE usage SET bytes = bytes + NEW.response_bytes - OLD.response_bytes WHERE kind = 3 AND name = '';
    DELETE FROM usage WHERE bytes <= 0 AND ((kind = 0 AND name = NEW.lane) OR (kind = 1 AND name = NEW.tenant));
END;
CREATE TRIGGER entries_discounted AFTER DELETE ON entries BEGIN
    UPDATE usage SET bytes = bytes - OLD.request_bytes
        WHERE (kind = 0 AND name = OLD.lane) OR (kind = 1 AND name = OLD.tenant) OR (kind = 2 AND name = '');
    UPDATE usage SET bytes = bytes - OLD.response_bytes WHERE kind = 3 AND name = '';
    DELETE FROM usage WHERE bytes <= 0 AND ((kind = 0 AND name = OLD.lane) OR (kind = 1 AND name = OLD.tenant));
END;

-- What was kept by version 1. Its tenants are not known: it counts as that of none.
UPDATE entries SET request_bytes = COALESCE(LENGTH(request), 0), response_bytes = COALESCE(LENGTH(response), 0);
INSERT INTO usage (kind, name, bytes)
    SELECT 0, lane, SUM(request_bytes) FROM entries WHERE request_bytes > 0 GROUP BY lane;
INSERT INTO usage (kind, name, bytes)
    SELECT 1, '', SUM(request_bytes) FROM entries WHERE request_bytes > 0 GROUP BY tenant;

PRAGMA user_version = 2;
