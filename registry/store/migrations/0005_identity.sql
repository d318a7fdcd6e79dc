-- Which store this is, one row. DATA/store.json says the same, so that a database is never taken for
-- that of other files. `opened` counts the servers that have opened it. Files that no revision uses
-- are removed only after `sweeps_from_s` (Unix seconds): a store that was put here by hand may not
-- know all that are used.
CREATE TABLE store (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    id TEXT NOT NULL,
    opened INTEGER NOT NULL,
    sweeps_from_s REAL NOT NULL
);

INSERT INTO store VALUES (1, lower(hex(randomblob(16))), 0, 0);
