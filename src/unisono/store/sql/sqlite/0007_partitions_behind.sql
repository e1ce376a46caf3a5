-- The newest events have no rows in `event_partitions` yet (see store/sqlite/recent_partitions.py): each up to
-- `partitions_indexed_to` has all of its rows.
ALTER TABLE head ADD COLUMN partitions_indexed_to INTEGER NOT NULL DEFAULT 0;

UPDATE head SET partitions_indexed_to = committed_id;
