ALTER TABLE partitions ADD COLUMN floor INTEGER NOT NULL DEFAULT 0;

CREATE TABLE bases (
    partition     INTEGER PRIMARY KEY,
    model_version TEXT NOT NULL,
    state         BLOB NOT NULL
) STRICT;
