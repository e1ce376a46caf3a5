-- The log: committed events, append-only, with the three ways to find one (DUR-01):
-- by committed_id, by id, by (partition, committed_id).

-- Small columns come first, so that looking up a known id never touches an event's overflow pages.
CREATE TABLE events (
    committed_id      INTEGER PRIMARY KEY,
    id                TEXT    NOT NULL,
    client_id         TEXT    NOT NULL,
    status_updated_at INTEGER NOT NULL,
    hash              BLOB    NOT NULL,
    partitions        TEXT    NOT NULL,
    event             BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX events_by_id ON events (id);

-- A name is stored once and then spoken of by its number, which never changes and is never given twice.
CREATE TABLE partitions (
    number INTEGER PRIMARY KEY,
    name   TEXT    NOT NULL
) STRICT;

CREATE UNIQUE INDEX partitions_by_name ON partitions (name);

CREATE TABLE event_partitions (
    partition    INTEGER NOT NULL,
    committed_id INTEGER NOT NULL,
    PRIMARY KEY (partition, committed_id)
) STRICT, WITHOUT ROWID;

-- One row. The head is stored, so ids go on from it whatever has been pruned (ORD-01): the rows present are
-- pruned_to + 1 … committed_id. `opened` counts the writers that have opened this log.
CREATE TABLE head (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    committed_id      INTEGER NOT NULL CHECK (committed_id BETWEEN 0 AND 9007199254740991),
    status_updated_at INTEGER NOT NULL,
    pruned_to         INTEGER NOT NULL CHECK (pruned_to BETWEEN 0 AND committed_id),
    opened            INTEGER NOT NULL
) STRICT;

INSERT INTO head VALUES (1, 0, 0, 0, 0);

-- The newest snapshot of each partition and model version (DUR-07).
CREATE TABLE snapshots (
    partition     INTEGER NOT NULL,
    model_version INTEGER NOT NULL,
    committed_id  INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    state         BLOB    NOT NULL,
    PRIMARY KEY (partition, model_version)
) STRICT;
