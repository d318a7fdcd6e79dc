-- Use of devices by replicas, in seconds, in buckets of three sizes; finer buckets are removed sooner.
-- Name "" is a standby, which belongs to no function. The time is the first key column after the size,
-- so that a query over all functions reads one contiguous range.
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
