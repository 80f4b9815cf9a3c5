-- Version 1 of the queue's schema. Instants are milliseconds since 1970.

CREATE TABLE entries (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order within a lane
    id          TEXT    NOT NULL UNIQUE,
    lane        TEXT    NOT NULL,
    shelf       INTEGER NOT NULL,                   -- 0 waiting, 1 done, 2 dead
    since       INTEGER NOT NULL,                   -- when it came to its shelf
    enqueued_at INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    claim       TEXT,                               -- the token of the last claim, if that was not given back
    label       TEXT    NOT NULL,
    error       TEXT,
    request     BLOB,                               -- gone when done
    response    BLOB
);
CREATE INDEX entries_by_lane ON entries (lane, seq) WHERE shelf = 0;
CREATE INDEX entries_by_shelf ON entries (shelf, since, id);

-- A lane is here while something of it waits. It is due when its head may be claimed: while the head is
-- claimed, that is when the lease ends.
CREATE TABLE lanes (
    lane   TEXT    PRIMARY KEY,
    due_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX lanes_by_due ON lanes (due_at);

-- How many entries are on each shelf: counting them would take longer the more they are.
CREATE TABLE totals (
    shelf INTEGER PRIMARY KEY,
    count INTEGER NOT NULL
);
INSERT INTO totals (shelf, count) VALUES (0, 0), (1, 0), (2, 0);
CREATE TRIGGER entries_added AFTER INSERT ON entries BEGIN
    UPDATE totals SET count = count + 1 WHERE shelf = NEW.shelf;
END;
CREATE TRIGGER entries_removed AFTER DELETE ON entries BEGIN
    UPDATE totals SET count = count - 1 WHERE shelf = OLD.shelf;
END;
CREATE TRIGGER entries_moved AFTER UPDATE OF shelf ON entries WHEN NEW.shelf <> OLD.shelf BEGIN
    UPDATE totals SET count = count - 1 WHERE shelf = OLD.shelf;
    UPDATE totals SET count = count + 1 WHERE shelf = NEW.shelf;
END;
