-- The schema of a client's store, version 5: what a new file gets. The numbered files lead older files to it.

CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: a draft_clock is never used twice, also after its draft is gone.
CREATE TABLE drafts (
    draft_clock INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    partitions  TEXT NOT NULL,
    event       BLOB NOT NULL,
    status      TEXT NOT NULL CHECK (status IN ('pending', 'rejected')),
    reason      TEXT,
    errors      TEXT,
    created_at  INTEGER NOT NULL,
    status_updated_at INTEGER,
    checksum    INTEGER,
    batch       INTEGER  -- of the drafts of one transaction: the draft_clock of its first
) STRICT;

CREATE TABLE events (
    committed_id      INTEGER PRIMARY KEY,
    id                TEXT NOT NULL UNIQUE,
    client_id         TEXT NOT NULL,
    partitions        TEXT NOT NULL,
    event             BLOB NOT NULL,
    status_updated_at INTEGER NOT NULL,
    checksum          INTEGER,
    author            TEXT NOT NULL DEFAULT ''  -- JSON with user_id and claims, empty where there are none
) STRICT;

-- cursor: where the next sync starts.
-- known: every event up to here is stored. It stays when a cursor goes back to 0 for another model, so that the view
-- has its history while it is fetched again.
-- floor: events up to here are not stored; the partition's base replaces them.
CREATE TABLE partitions (
    number INTEGER PRIMARY KEY,
    name   TEXT NOT NULL UNIQUE,
    cursor INTEGER NOT NULL DEFAULT 0,
    known  INTEGER NOT NULL DEFAULT 0,
    floor  INTEGER NOT NULL DEFAULT 0,
    checksum INTEGER
) STRICT;

CREATE TABLE event_partitions (
    partition    INTEGER NOT NULL,
    committed_id INTEGER NOT NULL,
    PRIMARY KEY (partition, committed_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE snapshots (
    partition     INTEGER PRIMARY KEY,
    committed_id  INTEGER NOT NULL,
    model_version TEXT NOT NULL,
    state         BLOB NOT NULL,
    checksum      INTEGER
) STRICT;

-- The state from the server that replaces the events up to the partition's floor.
CREATE TABLE bases (
    partition     INTEGER PRIMARY KEY,
    model_version TEXT NOT NULL,
    state         BLOB NOT NULL,
    checksum      INTEGER
) STRICT;
