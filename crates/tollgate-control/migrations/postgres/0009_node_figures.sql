-- What nodes report for the whole installation, where they share no Redis. It is of a day at most and can be lost, so
-- it is not logged.
CREATE UNLOGGED TABLE node_reports (
    node TEXT COLLATE "C" PRIMARY KEY,
    seen_at BIGINT NOT NULL
);
CREATE UNLOGGED TABLE node_figures (
    node TEXT COLLATE "C" NOT NULL,
    field TEXT COLLATE "C" NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (node, field)
);
