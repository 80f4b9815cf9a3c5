-- What nodes report for the whole installation. A file has one node, so these stay empty; both databases have the same tables.
CREATE TABLE node_reports (
    node TEXT PRIMARY KEY NOT NULL,
    seen_at BIGINT NOT NULL
);
CREATE TABLE node_figures (
    node TEXT NOT NULL,
    field TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (node, field)
);
