-- Usage of models by key and function, per hour (Unix seconds). Key id "" is a call without a key.
-- Keys and functions that were removed keep their rows. The time is the first key column, so that a
-- query over all functions, and the removal of old rows, read one contiguous range.
CREATE TABLE usage (
    key_id TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    tokens_in INTEGER NOT NULL,
    tokens_out INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    unknown INTEGER NOT NULL,
    PRIMARY KEY (bucket, namespace, name, key_id)
) WITHOUT ROWID;

-- Number of the last batch of usage that was added: a batch that is sent again is added once.
CREATE TABLE usage_batch (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    number INTEGER NOT NULL
);

INSERT INTO usage_batch VALUES (1, 0);
