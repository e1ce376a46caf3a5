-- Every statement of the embedded log, by name. Loaded once by unisono.store.statements.

-- name: head
SELECT committed_id FROM head;

-- name: extent
SELECT head.pruned_to, head.committed_id, keeping.archive FROM head CROSS JOIN keeping;

-- name: identity
SELECT log_id, log_epoch FROM head;

-- name: open_count
SELECT opened FROM head;

-- name: new_epoch
-- Larger than any epoch before, also after a restore of an older file: ?1 is the time in milliseconds.
UPDATE head SET log_epoch = max(log_epoch + 1, ?1) RETURNING log_epoch;

-- name: set_identity
UPDATE head SET log_id = ?1, log_epoch = ?2;

-- name: last_status_updated_at
SELECT status_updated_at FROM head;

-- name: increment_open_count
UPDATE head SET opened = opened + 1;

-- name: find_keys
-- ?1: array of keys. CROSS JOIN makes them the outer loop: one index search for each of them.
SELECT event_ids.committed_id FROM carray(?1) AS asked CROSS JOIN event_ids ON event_ids.key = asked.value;

-- name: find_events
-- ?1: JSON array of committed ids. An event is in one of the two tables: a statement reads both at one moment.
SELECT events.id, events.committed_id, events.hash, events.client_id, events.status_updated_at
FROM json_each(?1) AS asked CROSS JOIN events ON events.committed_id = asked.value
UNION ALL
SELECT pruned.id, pruned.committed_id, pruned.hash, pruned.client_id, pruned.status_updated_at
FROM json_each(?1) AS asked CROSS JOIN pruned ON pruned.committed_id = asked.value;

-- name: ids_extent
SELECT ids_indexed_to, committed_id FROM head;

-- name: ids_after
SELECT committed_id, id FROM pruned WHERE committed_id > ?1 AND committed_id <= ?2
UNION ALL
SELECT committed_id, id FROM events WHERE committed_id > ?1 AND committed_id <= ?2
ORDER BY committed_id LIMIT ?3;

-- name: insert_event_id
-- It may be there already: a process that ended wrote it, and how far it came was not recorded.
INSERT INTO event_ids (key, committed_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING;

-- name: insert_event
INSERT INTO events (committed_id, id, client_id, status_updated_at, hash, partitions, event, author)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- name: partitions_extent
SELECT partitions_indexed_to, committed_id FROM head;

-- name: partitions_after
SELECT committed_id, partitions FROM events
WHERE committed_id > ?1 AND committed_id <= ?2 ORDER BY committed_id LIMIT ?3;

-- name: insert_event_partition
-- It may be there already, as in `insert_event_id`.
INSERT INTO event_partitions (partition, committed_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING;

-- name: insert_events_of_partition
-- The same for many events of one partition: ?2, an array of integers, ascending.
INSERT INTO event_partitions (partition, committed_id) SELECT ?1, value FROM carray(?2) WHERE true
ON CONFLICT DO NOTHING;

-- name: all_partitions_indexed
UPDATE head SET partitions_indexed_to = committed_id WHERE one = 1;

-- name: advance_head
UPDATE head SET committed_id = ?1, status_updated_at = ?2, ids_indexed_to = ?3, partitions_indexed_to = ?4
WHERE one = 1;

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

-- name: page_ids_descending
{ranges} ORDER BY 1 DESC LIMIT ?3

-- name: next_ids
-- ?1: partition, ?2: after, ?3: up to, ?4: limit.
SELECT ?1, committed_id FROM event_partitions
WHERE partition = ?1 AND committed_id > ?2 AND committed_id <= ?3 ORDER BY committed_id LIMIT ?4;

-- name: newest_page
-- ?1: partition, ?2: up to, ?3: limit. Descending; the join order is that of `page`.
WITH ids (committed_id) AS (
    SELECT committed_id FROM event_partitions
    WHERE partition = ?1 AND committed_id > (SELECT pruned_to FROM head WHERE one = 1) AND committed_id <= ?2
    ORDER BY committed_id DESC LIMIT ?3
)
SELECT events.committed_id, events.id, events.client_id, events.partitions, events.event, events.hash,
       events.status_updated_at, events.author
FROM ids CROSS JOIN events ON events.committed_id = ids.committed_id;

-- name: page
-- No outer ORDER BY: CROSS JOIN fixes the join order, so rows come lazily in the order of the ids, without a sort.
WITH ids (committed_id) AS ({ids})
SELECT events.committed_id, events.id, events.client_id, events.partitions, events.event, events.hash,
       events.status_updated_at, events.author
FROM ids CROSS JOIN events ON events.committed_id = ids.committed_id;

-- name: listed_ids
-- As `page_ids`, of ids found before: ?4, an array of integers, ascending.
SELECT value FROM carray(?4) WHERE value > ?1 AND value <= ?2 LIMIT ?3

-- name: listed_ids_descending
SELECT value FROM carray(?4) WHERE value > ?1 AND value <= ?2 ORDER BY 1 DESC LIMIT ?3

-- name: wire_page
-- As `page`, all in one row: each event in the form of the wire (BCAST-05), joined by commas. `concat` and
-- `group_concat` take the rows in the order in which the join gives them, which is that of the ids.
WITH ids (committed_id) AS ({ids})
SELECT count(*), max(events.committed_id), sum(length(events.event)),
       CAST(group_concat(concat(
           '{"id":', json_quote(events.id), ',"client_id":', json_quote(events.client_id),
           ',"partitions":', events.partitions, ',"committed_id":', events.committed_id,
           ',"event":', events.event, ',"status_updated_at":', events.status_updated_at, '}')) AS BLOB)
FROM ids CROSS JOIN events ON events.committed_id = ids.committed_id;

-- name: wire_page_authors
-- As `wire_page`, with the author of each event that has one (EXT-03).
WITH ids (committed_id) AS ({ids})
SELECT count(*), max(events.committed_id), sum(length(events.event)),
       CAST(group_concat(concat(
           '{"id":', json_quote(events.id), ',"client_id":', json_quote(events.client_id),
           ',"partitions":', events.partitions, ',"committed_id":', events.committed_id,
           ',"event":', events.event, ',"status_updated_at":', events.status_updated_at,
           CASE events.author WHEN '' THEN '}' ELSE concat(',', substr(events.author, 2)) END)) AS BLOB)
FROM ids CROSS JOIN events ON events.committed_id = ids.committed_id;

-- name: any_id
WITH ids (committed_id) AS ({ids}) SELECT 1 FROM ids;

-- name: batch_start
-- The last event up to ?2 that was not submitted together with the event ?2 (EXT-13); {ids} are descending.
WITH ids (committed_id) AS ({ids})
SELECT events.committed_id FROM ids CROSS JOIN events ON events.committed_id = ids.committed_id
WHERE (events.client_id, events.status_updated_at)
    IS NOT (SELECT last.client_id, last.status_updated_at FROM events AS last WHERE last.committed_id = ?2)
LIMIT 1;

-- name: events_by_id
-- ?1: JSON array of ids; the rows are in its order.
SELECT events.committed_id, events.id, events.client_id, events.partitions, events.event, events.hash,
       events.status_updated_at, events.author
FROM json_each(?1) AS asked CROSS JOIN events ON events.committed_id = asked.value;

-- name: scan
SELECT committed_id, id, client_id, partitions, event, hash, status_updated_at, author
FROM events WHERE committed_id > ?1 AND committed_id <= ?2 ORDER BY committed_id LIMIT ?3;

-- name: last_before
-- ?1: time, ?2: now, ?3: id. The last old event before the first young one.
SELECT coalesce((
    SELECT committed_id FROM events
    WHERE committed_id <= ?3 AND status_updated_at < ?1 AND committed_id < coalesce((
        SELECT committed_id FROM events
        WHERE committed_id <= ?3 AND status_updated_at >= ?1 AND status_updated_at <= ?2
        ORDER BY committed_id LIMIT 1
    ), ?3 + 1)
    ORDER BY committed_id DESC LIMIT 1
), (SELECT pruned_to FROM head));

-- name: pruned_to
SELECT pruned_to FROM head;

-- name: partitions_pruned_to
-- ?1: JSON array of numbers, ?2: id. What has left and is still listed counts too (see `sweep_partitions`).
SELECT partitions.number, max(partitions.pruned_to, coalesce((
    SELECT max(committed_id) FROM event_partitions
    WHERE partition = partitions.number AND committed_id <= (SELECT pruned_to FROM head WHERE one = 1)
), 0)) AS gone
FROM json_each(?1) AS asked CROSS JOIN partitions ON partitions.number = asked.value
WHERE gone > ?2;

-- name: put_snapshot
-- One of another model digest is replaced, however new it is.
INSERT INTO snapshots (partition, model_version, committed_id, created_at, state, model_digest)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (partition, model_version) DO UPDATE
SET committed_id = excluded.committed_id, created_at = excluded.created_at, state = excluded.state,
    model_digest = excluded.model_digest
WHERE excluded.committed_id >= snapshots.committed_id OR excluded.model_digest <> snapshots.model_digest;

-- name: snapshot
SELECT snapshots.committed_id, snapshots.state, snapshots.created_at
FROM partitions CROSS JOIN snapshots ON snapshots.partition = partitions.number
WHERE partitions.name = ?1 AND snapshots.model_version = ?2 AND snapshots.model_digest = ?3;

-- name: snapshot_sizes
-- ?1: JSON array of names, ?2: model version, ?3: model digest.
SELECT partitions.name, snapshots.committed_id, length(snapshots.state)
FROM json_each(?1) AS asked CROSS JOIN partitions ON partitions.name = asked.value
CROSS JOIN snapshots ON snapshots.partition = partitions.number AND snapshots.model_version = ?2
    AND snapshots.model_digest = ?3;

-- name: snapshots_of
-- ?1: JSON array of names, ?2: model version, ?3: model digest.
SELECT partitions.name, snapshots.committed_id, snapshots.state, snapshots.created_at
FROM json_each(?1) AS asked CROSS JOIN partitions ON partitions.name = asked.value
CROSS JOIN snapshots ON snapshots.partition = partitions.number AND snapshots.model_version = ?2
    AND snapshots.model_digest = ?3;

-- name: watermarks
-- In batches by partition number: a read this short does not keep the WAL from starting over.
SELECT snapshots.partition, partitions.name, snapshots.committed_id
FROM snapshots CROSS JOIN partitions ON partitions.number = snapshots.partition
WHERE snapshots.partition > ?1 AND snapshots.model_version = ?2 AND snapshots.model_digest = ?3
ORDER BY snapshots.partition LIMIT ?4;

-- name: partition_names
SELECT number, name FROM partitions WHERE number > ?1 ORDER BY number LIMIT ?2;

-- name: names_from
-- ?1: the first name allowed, ?2: after this name, ?3: limit.
SELECT name FROM partitions WHERE name >= ?1 AND name > ?2 ORDER BY name LIMIT ?3;

-- name: partition_size
-- ?1: partition, ?2: up to, ?3: events counted at most; the newest are counted.
SELECT count(*), min(committed_id), max(committed_id) FROM (
    SELECT committed_id FROM event_partitions
    WHERE partition = ?1 AND committed_id > (SELECT pruned_to FROM head WHERE one = 1) AND committed_id <= ?2
    ORDER BY committed_id DESC LIMIT ?3
);

-- name: newest_ids
-- ?1: partition, ?2: up to, ?3: limit.
SELECT committed_id FROM event_partitions
WHERE partition = ?1 AND committed_id > (SELECT pruned_to FROM head WHERE one = 1) AND committed_id <= ?2
ORDER BY committed_id DESC LIMIT ?3;

-- name: model_in_force
SELECT models.version, models.digest, models.files
FROM keeping CROSS JOIN models ON models.version = keeping.model_version;

-- Maintenance: pruning and erasing.

-- name: model_digest
SELECT digest FROM models WHERE version = ?1;

-- name: put_model
INSERT INTO models (version, digest, files, published_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (version) DO UPDATE
SET digest = excluded.digest, files = excluded.files, published_at = excluded.published_at
WHERE excluded.digest <> models.digest;

-- name: set_model_in_force
UPDATE keeping SET model_version = ?1 WHERE model_version IS NOT ?1;

-- name: set_archive
UPDATE keeping SET archive = ?1;

-- name: oldest_events
SELECT committed_id, length(event) FROM events
WHERE committed_id > ?1 AND committed_id <= ?2 ORDER BY committed_id LIMIT ?3;

-- name: remember_pruned_ids
INSERT INTO pruned (committed_id, id, client_id, status_updated_at, hash)
SELECT committed_id, id, client_id, status_updated_at, hash FROM events
WHERE committed_id > ?1 AND committed_id <= ?2 ORDER BY committed_id;

-- name: prune_events
DELETE FROM events WHERE committed_id > ?1 AND committed_id <= ?2;

-- name: advance_pruned_to
UPDATE head SET pruned_to = ?1 WHERE one = 1;

-- name: sweep_state
-- How far the log is pruned, how far the index of partitions is swept, and the sweep that has begun, if one has. What is
-- left of the log, and the partitions, are what a sweep reads besides what it removes.
SELECT head.pruned_to, keeping.swept_to, keeping.sweep_upto, keeping.sweep_after,
       head.committed_id - head.pruned_to + coalesce((SELECT max(number) FROM partitions), 0)
FROM head CROSS JOIN keeping;

-- name: begin_sweep
UPDATE keeping SET sweep_upto = ?1, sweep_after = 0;

-- name: advance_sweep
UPDATE keeping SET sweep_after = ?1;

-- name: end_sweep
UPDATE keeping SET swept_to = sweep_upto;

-- name: sweep_partitions
-- ?1: after this number, ?2: up to this event, ?3: limit, ?4: events counted at most. The next partitions, how many of
-- their events have left and are still listed, and the last of those. Not all of them are read where they are many.
SELECT number, (
    SELECT count(*) FROM (
        SELECT 1 FROM event_partitions WHERE partition = number AND committed_id <= ?2 LIMIT ?4
    )
), (SELECT max(committed_id) FROM event_partitions WHERE partition = number AND committed_id <= ?2)
FROM partitions WHERE number > ?1 ORDER BY number LIMIT ?3;

-- name: sweep_part
-- ?1: number, ?2: how many. The last of the first events that are listed.
SELECT committed_id FROM event_partitions WHERE partition = ?1 ORDER BY committed_id LIMIT 1 OFFSET ?2 - 1;

-- name: sweep_event_partitions
DELETE FROM event_partitions WHERE partition = ?1 AND committed_id <= ?2;

-- name: sweep_partition
UPDATE partitions SET pruned_to = max(pruned_to, ?2) WHERE number = ?1;

-- name: events_to_erase
-- ?1: JSON array of committed ids.
SELECT events.committed_id, events.partitions, events.event
FROM json_each(?1) AS asked CROSS JOIN events ON events.committed_id = asked.value;

-- name: overwrite_event
-- With the same length, so that the text is overwritten in place before anything moves.
UPDATE events SET event = zeroblob(length(event)),
    author = CASE author WHEN '' THEN '' ELSE printf('%0*d', length(CAST(author AS BLOB)), 0) END
WHERE committed_id = ?1;

-- name: replace_event
UPDATE events SET event = ?2, author = '' WHERE committed_id = ?1;

-- name: drop_snapshots
-- ?1: JSON array of partition numbers.
DELETE FROM snapshots WHERE partition IN (SELECT value FROM json_each(?1));

-- name: erasures
SELECT erasures FROM keeping;

-- name: count_erasure
UPDATE keeping SET erasures = erasures + 1, unclean = 1 RETURNING erasures;

-- name: read_unclean
SELECT unclean FROM keeping;

-- name: set_clean
UPDATE keeping SET unclean = 0;

-- Who is refused.

-- name: put_revocation
INSERT INTO revocations (kind, name, until) VALUES (?1, ?2, ?3)
ON CONFLICT (kind, name) DO UPDATE SET until = excluded.until;

-- name: drop_revocations
DELETE FROM revocations WHERE until <= ?1;

-- name: revocations
SELECT kind, name, until FROM revocations ORDER BY kind, name;

-- Copying a log.

-- name: copy_extent
SELECT committed_id, pruned_to, status_updated_at FROM head;

-- name: start_pruned
UPDATE head SET committed_id = ?1, pruned_to = ?1, status_updated_at = ?2, partitions_indexed_to = ?1;

-- name: count_snapshots
SELECT count(*) FROM snapshots;

-- name: all_snapshots
SELECT partitions.name, snapshots.committed_id, snapshots.model_version, snapshots.state, snapshots.created_at,
       snapshots.model_digest
FROM snapshots CROSS JOIN partitions ON partitions.number = snapshots.partition;

-- name: count_event_partitions
-- Also those of events that have no rows yet.
SELECT (SELECT count(*) FROM event_partitions WHERE committed_id > ?1 AND committed_id <= head.partitions_indexed_to)
    + (SELECT coalesce(sum(json_array_length(partitions)), 0) FROM events
       WHERE committed_id > max(?1, head.partitions_indexed_to))
FROM head;

-- name: pruned_ids
SELECT id, committed_id, client_id, status_updated_at, hash FROM pruned
WHERE committed_id > ?1 AND committed_id <= ?2 ORDER BY committed_id LIMIT ?3;

-- name: pruned_partitions
SELECT number, name, max(pruned_to, coalesce((
    SELECT max(committed_id) FROM event_partitions
    WHERE partition = number AND committed_id <= (SELECT pruned_to FROM head WHERE one = 1)
), 0))
FROM partitions WHERE number > ?1 ORDER BY number LIMIT ?2;

-- name: insert_pruned_id
INSERT INTO pruned (id, committed_id, client_id, status_updated_at, hash) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (committed_id) DO NOTHING;

-- name: insert_pruned_partition
INSERT INTO partitions (name, pruned_to) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET pruned_to = max(pruned_to, excluded.pruned_to);

-- The schema.

-- name: any_object
SELECT 1 FROM sqlite_schema LIMIT 1;

-- For `unisono check`: short reads, so that a running server's WAL can start over.

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

-- name: check_maintenance
SELECT archive, model_version IS NULL OR EXISTS (SELECT 1 FROM models WHERE version = keeping.model_version)
FROM keeping;

-- name: check_pruned
SELECT id, committed_id, length(hash) FROM pruned WHERE committed_id > ?1 ORDER BY committed_id LIMIT ?2;

-- name: check_pruned_partitions
SELECT name, pruned_to FROM partitions WHERE pruned_to > (SELECT pruned_to FROM head);

-- name: check_missing_partitions
-- ?1: JSON array of [name, committed_id]. Events after `partitions_indexed_to` may have no rows yet.
SELECT asked.value ->> 0, asked.value ->> 1 FROM json_each(?1) AS asked
WHERE NOT EXISTS (
    SELECT 1 FROM partitions
    WHERE partitions.name = asked.value ->> 0 AND (
        asked.value ->> 1 > (SELECT partitions_indexed_to FROM head) OR EXISTS (
            SELECT 1 FROM event_partitions
            WHERE event_partitions.partition = partitions.number
              AND event_partitions.committed_id = asked.value ->> 1
        )
    )
);

-- name: check_marks
SELECT committed_id, ids_indexed_to, partitions_indexed_to FROM head;

-- name: check_event_ids
-- Rows without their event, or under another key than that of its id.
SELECT event_ids.key, event_ids.committed_id, coalesce(id_key(coalesce(events.id, pruned.id)) = event_ids.key, 0)
FROM event_ids
LEFT JOIN events ON events.committed_id = event_ids.committed_id
LEFT JOIN pruned ON pruned.committed_id = event_ids.committed_id
WHERE (event_ids.key, event_ids.committed_id) > (?1, ?2)
ORDER BY event_ids.key, event_ids.committed_id LIMIT ?3;

-- name: check_index_size
SELECT count(*) FROM event_partitions;

-- name: check_index
SELECT event_partitions.partition, event_partitions.committed_id, partitions.name, events.partitions
FROM event_partitions
LEFT JOIN partitions ON partitions.number = event_partitions.partition
LEFT JOIN events ON events.committed_id = event_partitions.committed_id
WHERE (event_partitions.partition, event_partitions.committed_id) > (?1, ?2)
    AND NOT (event_partitions.committed_id <= (SELECT pruned_to FROM head WHERE one = 1)
             AND event_partitions.committed_id > (SELECT swept_to FROM keeping))
ORDER BY event_partitions.partition, event_partitions.committed_id LIMIT ?3;

-- name: check_names
SELECT number, name FROM partitions ORDER BY name;

-- name: check_snapshots
SELECT snapshots.partition, partitions.name, snapshots.committed_id
FROM snapshots LEFT JOIN partitions ON partitions.number = snapshots.partition
WHERE partitions.number IS NULL OR snapshots.committed_id < 0
   OR snapshots.committed_id > (SELECT committed_id FROM head);
