-- What replicas had of devices, in seconds, in three sizes of bucket: the finer, the sooner it is
-- removed. Name "" is nobody's. The time comes first: a look at everything reads one stretch.
CREATE TABLE device_use (
    bucket_s INTEGER NOT NULL,
    at_s INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    device TEXT NOT NULL,
    waking_s REAL NOT NULL,
    idle_s REAL NOT NULL,
    busy_s REAL NOT NULL,
    PRIMARY KEY (bucket_s, at_s, namespace, name, number, device)
) WITHOUT ROWID;

CREATE INDEX device_use_by_function ON device_use (namespace, name, bucket_s, at_s);
