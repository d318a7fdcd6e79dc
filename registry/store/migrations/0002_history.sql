-- History with limited retention. Times are Unix seconds.

CREATE TABLE cold_starts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    total_ms REAL NOT NULL,
    record TEXT NOT NULL
);

CREATE INDEX cold_starts_by_function ON cold_starts (namespace, name, id);

CREATE TABLE state_intervals (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    to_s REAL NOT NULL,
    record TEXT NOT NULL
);

CREATE INDEX state_intervals_by_function ON state_intervals (namespace, name, id);
CREATE INDEX state_intervals_by_end ON state_intervals (to_s);

CREATE TABLE arrivals (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    minute_s INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (namespace, name, minute_s)
) WITHOUT ROWID;

CREATE INDEX arrivals_by_minute ON arrivals (minute_s);
