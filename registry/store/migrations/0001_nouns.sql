-- Deployments. `record` is the JSON of a class in registry.model; fields used in queries are columns.

CREATE TABLE bundles (
    digest TEXT PRIMARY KEY
) WITHOUT ROWID;

CREATE TABLE bundle_files (
    digest TEXT NOT NULL REFERENCES bundles (digest) ON DELETE CASCADE,
    path TEXT NOT NULL,
    size INTEGER NOT NULL CHECK (size >= 0),
    sha256 TEXT NOT NULL,
    PRIMARY KEY (digest, path)
) WITHOUT ROWID;

-- Rows are never deleted: revision numbers are not reused, not even after the function's removal.
CREATE TABLE revision_numbers (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) WITHOUT ROWID;

CREATE TABLE revisions (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL CHECK (number > 0),
    bundle TEXT NOT NULL REFERENCES bundles (digest),
    record TEXT NOT NULL,
    PRIMARY KEY (namespace, name, number)
) WITHOUT ROWID;

CREATE INDEX revisions_by_bundle ON revisions (bundle);

CREATE TABLE functions (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    revision INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (namespace, name),
    FOREIGN KEY (namespace, name, revision) REFERENCES revisions (namespace, name, number)
) WITHOUT ROWID;

-- Keyed by content: a profile is valid for every deploy of the same bytes, and outlives revisions.
-- `id` orders by the time of measurement: a replaced row gets a new one.
CREATE TABLE profiles (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    bundle TEXT NOT NULL,
    engine TEXT NOT NULL,
    device_kind TEXT NOT NULL,
    record TEXT NOT NULL,
    UNIQUE (bundle, engine, device_kind)
);

CREATE TABLE keys (
    namespace TEXT NOT NULL,
    id TEXT NOT NULL,
    sha256 TEXT NOT NULL UNIQUE,
    record TEXT NOT NULL,
    PRIMARY KEY (namespace, id)
);

CREATE TABLE operations (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    id TEXT NOT NULL,
    state TEXT NOT NULL,
    record TEXT NOT NULL,
    UNIQUE (namespace, id)
);

CREATE INDEX operations_by_state ON operations (state, position);
