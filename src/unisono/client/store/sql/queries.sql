-- Every statement of a client's store, by name. Loaded once by unisono.client.store.statements.

-- name: table_count
SELECT count(*) FROM sqlite_schema;

-- name: lock
BEGIN EXCLUSIVE;

-- name: owner
SELECT value FROM meta WHERE key = 'client_id';

-- name: set_owner
INSERT INTO meta VALUES ('client_id', ?);

-- name: notes
SELECT key, value FROM meta;

-- name: put_note
INSERT OR REPLACE INTO meta VALUES (?, ?);

-- name: drafts
SELECT draft_clock, id, partitions, event, status, reason, errors, created_at, status_updated_at, batch, checksum
FROM drafts ORDER BY draft_clock;

-- name: last_draft_clock
SELECT seq FROM sqlite_sequence WHERE name = 'drafts';

-- name: insert_draft
INSERT INTO drafts (draft_clock, id, partitions, event, status, created_at, batch) VALUES (?, ?, ?, ?, 'pending', ?, ?);

-- name: delete_draft
DELETE FROM drafts WHERE id = ?;

-- name: delete_rejected_draft
DELETE FROM drafts WHERE id = ? AND status = 'rejected';

-- name: reject_draft
UPDATE drafts SET status = 'rejected', reason = ?, errors = ?, status_updated_at = ? WHERE id = ?;

-- name: partition_names
SELECT name FROM partitions ORDER BY number;

-- name: insert_partition
INSERT OR IGNORE INTO partitions (name) VALUES (?);

-- name: partition
SELECT number, name, cursor, known, floor, checksum FROM partitions WHERE name = ?;

-- name: delete_partition
DELETE FROM partitions WHERE number = ?;

-- name: move_cursors
-- ?2: JSON array of the numbers of the partitions that reach ?1.
UPDATE partitions SET cursor = ?1, known = max(known, ?1) WHERE number IN (SELECT value FROM json_each(?2));

-- name: start_partition
UPDATE partitions SET known = ?, floor = ? WHERE number = ?;

-- name: rewind_partition
UPDATE partitions SET cursor = 0 WHERE number = ?;

-- name: rewind_partitions
UPDATE partitions SET cursor = 0;

-- name: reset_partitions
UPDATE partitions SET cursor = 0, known = 0, floor = 0;

-- name: insert_event
-- An event that was stored before its author was known gets it.
INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6, row_checksum(?1, ?2, ?3, ?4, ?5, ?6, ?7), ?7)
ON CONFLICT (committed_id) DO UPDATE SET author = excluded.author, checksum = excluded.checksum
WHERE events.author = '' AND excluded.author <> '' AND events.id = excluded.id
    AND events.checksum = row_checksum(?1, ?2, ?3, ?4, ?5, ?6, '')
ON CONFLICT DO NOTHING;

-- name: insert_event_partition
INSERT OR IGNORE INTO event_partitions VALUES (?, ?);

-- name: conflicting_events
SELECT committed_id, id FROM events WHERE committed_id = ? OR id = ?;

-- name: events
SELECT p.committed_id, e.id, e.client_id, e.partitions, e.event, e.status_updated_at, e.author, e.checksum
FROM event_partitions p LEFT JOIN events e USING (committed_id)
WHERE p.partition = ? AND p.committed_id > ? AND p.committed_id <= ? ORDER BY p.committed_id;

-- name: newest_events
SELECT p.committed_id, e.id, e.client_id, e.partitions, e.event, e.status_updated_at, e.author, e.checksum
FROM event_partitions p LEFT JOIN events e USING (committed_id)
WHERE p.partition = ? AND p.committed_id <= ? ORDER BY p.committed_id DESC LIMIT ?;

-- name: has_event
SELECT 1 FROM events WHERE id = ?;

-- name: count_events_of_client
SELECT count(*) FROM events WHERE client_id = ?;

-- name: delete_events_of_partition
-- Those up to ?2 that belong to no other followed partition. CROSS JOIN keeps the few partitions outside: one index
-- search for each of them.
DELETE FROM events WHERE committed_id IN (
    SELECT committed_id FROM event_partitions p WHERE partition = ?1 AND committed_id <= ?2 AND NOT EXISTS (
        SELECT 1 FROM partitions q
        CROSS JOIN event_partitions o ON o.partition = q.number AND o.committed_id = p.committed_id
        WHERE q.number <> p.partition));

-- name: delete_event_partitions
DELETE FROM event_partitions WHERE partition = ? AND committed_id <= ?;

-- name: delete_all_events
DELETE FROM events;

-- name: delete_all_event_partitions
DELETE FROM event_partitions;

-- name: delete_all_snapshots
DELETE FROM snapshots;

-- name: delete_all_bases
DELETE FROM bases;

-- name: snapshot
SELECT partition, committed_id, model_version, state, checksum FROM snapshots
WHERE partition = ? AND model_version = ?;

-- name: put_snapshot
INSERT OR REPLACE INTO snapshots VALUES (?1, ?2, ?3, ?4, row_checksum(?1, ?2, ?3, ?4));

-- name: delete_snapshot
DELETE FROM snapshots WHERE partition = ?;

-- name: delete_snapshots_from
DELETE FROM snapshots WHERE partition = ? AND committed_id >= ?;

-- name: base
SELECT partition, model_version, state, checksum FROM bases WHERE partition = ?;

-- name: insert_base
INSERT INTO bases VALUES (?1, ?2, ?3, row_checksum(?1, ?2, ?3));

-- name: delete_base
DELETE FROM bases WHERE partition = ?;

-- name: bases_of_other_models
SELECT partition FROM bases WHERE model_version <> ?;
