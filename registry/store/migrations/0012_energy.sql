-- Device-seconds and joules that replicas are charged with: holders of the same device split them. The
-- rows of name "" have what nobody holds, too.
ALTER TABLE device_use ADD COLUMN held_s REAL NOT NULL DEFAULT 0;
ALTER TABLE device_use ADD COLUMN joules REAL NOT NULL DEFAULT 0;

-- What devices are: kind, name of a GPU's model, and the part of its GPU that a slice is. A device keeps
-- its row as long as its history.
CREATE TABLE device_models (
    device TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    model TEXT NOT NULL,
    part REAL NOT NULL,
    at_s REAL NOT NULL
) WITHOUT ROWID;

-- Time from sending calls to a server until their answers ended, in milliseconds.
ALTER TABLE usage ADD COLUMN busy_ms INTEGER NOT NULL DEFAULT 0;
