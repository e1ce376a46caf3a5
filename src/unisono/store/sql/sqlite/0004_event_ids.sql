-- Which event has an id, found by a key of 64 bits made from the id (`id_key`, see store/sqlite/event_ids.py). Two ids
-- may have the same key: whoever looks up compares the id of the event. The newest events have no row yet: each up to
-- `ids_indexed_to` has one.
CREATE TABLE event_ids (
    key          INTEGER NOT NULL,
    committed_id INTEGER NOT NULL,
    PRIMARY KEY (key, committed_id)
) STRICT, WITHOUT ROWID;

INSERT INTO event_ids SELECT id_key(id), committed_id FROM events ORDER BY 1;

ALTER TABLE head ADD COLUMN ids_indexed_to INTEGER NOT NULL DEFAULT 0;

UPDATE head SET ids_indexed_to = committed_id;

DROP INDEX events_by_id;
