-- Revisions that had a function's traffic before the current one, oldest first, each once. A
-- rollback moves the traffic to the last of them.
CREATE TABLE traffic (
    id INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    UNIQUE (namespace, name, number),
    FOREIGN KEY (namespace, name, number) REFERENCES revisions (namespace, name, number)
        ON DELETE CASCADE
);

-- Before this migration every deploy moved the traffic, and nothing moved it back.
INSERT INTO traffic (namespace, name, number)
    SELECT r.namespace, r.name, r.number FROM revisions r JOIN functions f USING (namespace, name)
    WHERE r.number < f.revision ORDER BY r.namespace, r.name, r.number;

-- Revisions that an operation has added and that have no traffic yet. After a crash the row remains:
-- the resumed operation continues with that revision, or removes it.
CREATE TABLE staged (
    namespace TEXT NOT NULL,
    operation TEXT NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (namespace, operation),
    FOREIGN KEY (namespace, name, number) REFERENCES revisions (namespace, name, number)
        ON DELETE CASCADE
) WITHOUT ROWID;

CREATE INDEX staged_by_revision ON staged (namespace, name, number);
