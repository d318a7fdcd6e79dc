-- Which revisions had a function's traffic before the present one, oldest first, each once: a
-- rollback goes back along this line.
CREATE TABLE traffic (
    id INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    UNIQUE (namespace, name, number),
    FOREIGN KEY (namespace, name, number) REFERENCES revisions (namespace, name, number)
        ON DELETE CASCADE
);

-- Until now every deploy moved the traffic, and nothing moved it back.
INSERT INTO traffic (namespace, name, number)
    SELECT r.namespace, r.name, r.number FROM revisions r JOIN functions f USING (namespace, name)
    WHERE r.number < f.revision ORDER BY r.namespace, r.name, r.number;

-- A revision that an operation has added and that has no traffic yet. A server that dies meanwhile
-- leaves this row: the resumed operation goes on with that revision, or takes it away again.
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
