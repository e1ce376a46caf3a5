-- What deduplication remembers of pruned events (ORD-05), in the order in which they leave. Their rows in `event_ids` stay,
-- so an id is found the same way before and after.
ALTER TABLE pruned RENAME TO pruned_by_id;

CREATE TABLE pruned (
    id                TEXT    NOT NULL,
    committed_id      INTEGER PRIMARY KEY,
    client_id         TEXT    NOT NULL,
    status_updated_at INTEGER NOT NULL,
    hash              BLOB    NOT NULL
) STRICT;

INSERT OR IGNORE INTO pruned SELECT * FROM pruned_by_id ORDER BY committed_id;

DROP TABLE pruned_by_id;

INSERT OR IGNORE INTO event_ids SELECT id_key(id), committed_id FROM pruned ORDER BY 1;

-- `event_partitions` may have rows of events that have left: none up to `swept_to`. They are removed partition by
-- partition; the sweep that has begun removes those up to `sweep_upto`, and has come to the partition `sweep_after`.
ALTER TABLE keeping ADD COLUMN swept_to INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keeping ADD COLUMN sweep_upto INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keeping ADD COLUMN sweep_after INTEGER NOT NULL DEFAULT 0;

UPDATE keeping SET swept_to = (SELECT pruned_to FROM head), sweep_upto = (SELECT pruned_to FROM head);
