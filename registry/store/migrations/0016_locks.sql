-- Locks of the packages of Python functions, by the sha256 of their text. `key` is equal for equal
-- needs, so that a deploy finds the lock of an earlier one.
CREATE TABLE locks (digest TEXT PRIMARY KEY, key TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX locks_by_key ON locks (key);
