-- What leaves the log, and what stays of it.

-- Deduplication remembers an event for ever (ORD-05), also after it has left `events`: an id is in one of the two.
CREATE TABLE pruned (
    id                TEXT    NOT NULL PRIMARY KEY,
    committed_id      INTEGER NOT NULL,
    client_id         TEXT    NOT NULL,
    status_updated_at INTEGER NOT NULL,
    hash              BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

-- The last event of each partition that has left: whoever asks for what came after it finds all of it here.
ALTER TABLE partitions ADD COLUMN pruned_to INTEGER NOT NULL DEFAULT 0;

-- One row. `archive` names the lake that has what left; nothing leaves before it is set. `model_version` is the
-- model in force, if it has a version. `erasures` counts the times something was erased: snapshots folded before the
-- last one are not taken. `unclean`: something was erased, and its traces may still be in the file.
CREATE TABLE keeping (
    one           INTEGER PRIMARY KEY CHECK (one = 1),
    archive       TEXT,
    model_version INTEGER,
    erasures      INTEGER NOT NULL,
    unclean       INTEGER NOT NULL
) STRICT;

INSERT INTO keeping VALUES (1, NULL, NULL, 0, 0);

-- Models the server judged by, for those who read the log without it.
CREATE TABLE models (
    version      INTEGER PRIMARY KEY,
    digest       TEXT    NOT NULL,
    files        BLOB    NOT NULL,  -- MessagePack: path → bytes
    published_at INTEGER NOT NULL
) STRICT;
