-- Secrets of servers. `sealed` is nonce (12 bytes), ciphertext and tag of AES-256-GCM, with the
-- namespace and name as associated data; `key` identifies the key, which is in no database. Times in
-- Unix seconds.
CREATE TABLE secrets (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    sealed BLOB NOT NULL,
    set_s REAL NOT NULL,
    PRIMARY KEY (namespace, name)
) WITHOUT ROWID;
