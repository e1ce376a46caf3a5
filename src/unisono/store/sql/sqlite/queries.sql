-- Every statement of the embedded log, by name. Loaded once by unisono.store.statements.

-- name: head
SELECT committed_id FROM head;

-- name: last_status_updated_at
SELECT status_updated_at FROM head;

-- name: count_opening
UPDATE head SET opened = opened + 1;

-- name: known
-- ?1: JSON array of ids. CROSS JOIN keeps the asked ids outside: one index search for each of them.
SELECT events.id, events.committed_id, events.hash, events.client_id, events.status_updated_at
FROM json_each(?1) AS asked CROSS JOIN events ON events.id = asked.value;

-- name: insert_event
INSERT INTO events (committed_id, id, client_id, status_updated_at, hash, partitions, event)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: insert_event_partition
INSERT INTO event_partitions (partition, committed_id) VALUES (?1, ?2);

-- name: advance_head
UPDATE head SET committed_id = ?1, status_updated_at = ?2 WHERE one = 1;

-- name: partition_numbers
-- ?1: JSON array of names.
SELECT partitions.name, partitions.number
FROM json_each(?1) AS asked CROSS JOIN partitions ON partitions.name = asked.value;

-- name: insert_partition
INSERT INTO partitions (name) VALUES (?1) RETURNING number;

-- name: page_range
-- One term of a page: the ids of one partition within (?1, ?2]. {number} becomes its parameter.
SELECT committed_id FROM event_partitions
WHERE partition = {number} AND committed_id > ?1 AND committed_id <= ?2

-- name: page_ids
-- UNION over ranges that are each in index order is a lazy merge: it stops after ?3 ids.
{ranges} ORDER BY 1 LIMIT ?3

-- name: page
-- No outer ORDER BY: CROSS JOIN fixes the nesting, so rows come in the order of the ids, unsorted and lazily.
WITH ids (committed_id) AS ({ids})
SELECT events.committed_id, events.id, events.client_id, events.partitions, events.event, events.hash,
       events.status_updated_at
FROM ids CROSS JOIN events ON events.committed_id = ids.committed_id;

-- name: records
-- ?1: JSON array of ids, ascending.
SELECT events.committed_id, events.id, events.client_id, events.partitions, events.event, events.hash,
       events.status_updated_at
FROM json_each(?1) AS asked CROSS JOIN events ON events.committed_id = asked.value;

-- name: scan
SELECT committed_id, id, client_id, partitions, event, hash, status_updated_at
FROM events WHERE committed_id > ?1 AND committed_id <= ?2 ORDER BY committed_id LIMIT ?3;

-- name: put_snapshot
INSERT INTO snapshots (partition, model_version, committed_id, created_at, state)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (partition, model_version) DO UPDATE
SET committed_id = excluded.committed_id, created_at = excluded.created_at, state = excluded.state
WHERE excluded.committed_id >= snapshots.committed_id;

-- name: snapshot
SELECT snapshots.committed_id, snapshots.state, snapshots.created_at
FROM partitions CROSS JOIN snapshots ON snapshots.partition = partitions.number
WHERE partitions.name = ?1 AND snapshots.model_version = ?2;

-- The rest reads for `unisono check`: short statements, so that a running server's WAL can start over.

-- name: check_schema
SELECT name, type, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\';

-- name: check_head
SELECT head.committed_id, head.pruned_to, head.status_updated_at,
       (SELECT min(committed_id) FROM events), (SELECT max(committed_id) FROM events)
FROM head;

-- name: check_extent
SELECT (SELECT min(committed_id) FROM events), (SELECT max(committed_id) FROM events);

-- name: check_duplicates
SELECT id, min(committed_id), count(*) FROM events GROUP BY id HAVING count(*) > 1;

-- name: check_indexed
SELECT 1 FROM partitions CROSS JOIN event_partitions ON event_partitions.partition = partitions.number
WHERE partitions.name = ?1 AND event_partitions.committed_id = ?2;

-- name: check_index_size
SELECT count(*) FROM event_partitions;

-- name: check_index
SELECT event_partitions.partition, event_partitions.committed_id, partitions.name, events.partitions
FROM event_partitions
LEFT JOIN partitions ON partitions.number = event_partitions.partition
LEFT JOIN events ON events.committed_id = event_partitions.committed_id
WHERE (event_partitions.partition, event_partitions.committed_id) > (?1, ?2)
ORDER BY event_partitions.partition, event_partitions.committed_id LIMIT ?3;

-- name: check_names
SELECT number, name FROM partitions ORDER BY name;

-- name: check_snapshots
SELECT snapshots.partition, partitions.name, snapshots.committed_id
FROM snapshots LEFT JOIN partitions ON partitions.number = snapshots.partition
WHERE partitions.number IS NULL OR snapshots.committed_id < 0
   OR snapshots.committed_id > (SELECT committed_id FROM head);
