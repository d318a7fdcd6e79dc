-- Identity of this store, one row. DATA/store.json has the same id, so that a database is never used
-- with the files of another store. `opened` counts the servers that have opened it. Files that no
-- revision uses are removed only after `sweeps_from_s` (Unix seconds): a database that was put here
-- by hand may not list all files in use.
CREATE TABLE store (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    id TEXT NOT NULL,
    opened INTEGER NOT NULL,
    sweeps_from_s REAL NOT NULL
);

INSERT INTO store VALUES (1, lower(hex(randomblob(16))), 0, 0);
