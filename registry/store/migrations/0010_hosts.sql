-- Hosts of replicas beside the local machine. `record` is the JSON of registry.model.Host.
CREATE TABLE hosts (
    name TEXT PRIMARY KEY,
    record TEXT NOT NULL
) WITHOUT ROWID;
