-- Compiled models, and the state of their builds. `target` is the digest of what is compiled and
-- for which devices (registry.builds.Target), so that equal revisions share both. The records
-- are the JSON of registry.builds.Build and registry.compilation.Compiled.
CREATE TABLE builds (
    target TEXT PRIMARY KEY,
    record TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE compiled (
    target TEXT PRIMARY KEY,
    record TEXT NOT NULL
) WITHOUT ROWID;
