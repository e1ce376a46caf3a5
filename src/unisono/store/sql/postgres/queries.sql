-- Every statement of the shared log, by name. Loaded once by unisono.store.statements. Parameters are psycopg's:
-- %(name)b is sent in binary form.

-- name: server_settings
SELECT pg_is_in_recovery(), current_setting('transaction_read_only'), current_setting('fsync'),
       current_setting('synchronous_commit'), current_setting('server_encoding'),
       current_setting('server_version_num')::int;

-- name: change_setting
SELECT set_config(%(name)s, %(value)s, false);

-- name: read_setting
SELECT CASE unit WHEN 'ms' THEN setting || unit ELSE setting END FROM pg_settings WHERE name = %(name)s;

-- The group. A separate statement locks the head row, so that later statements of the transaction see everything that
-- was committed before the lock was granted.

-- name: lock_head
SELECT committed_id, pruned_to, model_version, log_epoch FROM unisono.head WHERE one FOR UPDATE;

-- name: read_head
SELECT committed_id, pruned_to, model_version, log_epoch FROM unisono.head WHERE one;

-- name: events_after
-- Ids have no gaps, so a range of ids bounds the rows; at least one record, whatever its size.
SELECT committed_id, id, client_id, partitions, event, hash, status_updated_at, author
FROM (
    SELECT *, sum(octet_length(event)) OVER (ORDER BY committed_id ROWS UNBOUNDED PRECEDING) AS reached
    FROM unisono.events
    WHERE committed_id > %(since)b AND committed_id <= %(upto)b
) AS sized
WHERE reached <= %(bytes_max)b OR committed_id = %(since)b + 1
ORDER BY committed_id;

-- name: find_ids
-- One statement, so that an id that is being pruned is found in one of the two tables.
SELECT events.id, events.committed_id, events.hash, events.client_id, events.status_updated_at
FROM unnest(%(ids)b) AS asked (id) JOIN unisono.events ON events.id = asked.id COLLATE "C"
UNION ALL
SELECT pruned.id, pruned.committed_id, pruned.hash, pruned.client_id, pruned.status_updated_at
FROM unnest(%(ids)b) AS asked (id) JOIN unisono.pruned ON pruned.id = asked.id COLLATE "C";

-- name: put_revocation
INSERT INTO unisono.revocations (kind, name, until) VALUES (%(kind)s, %(name)s, %(until)b)
ON CONFLICT (kind, name) DO UPDATE SET until = excluded.until;

-- name: drop_revocations
DELETE FROM unisono.revocations WHERE until <= %(now)b;

-- name: revocations
SELECT kind, name, until FROM unisono.revocations ORDER BY kind, name;

-- name: connected_clients
SELECT presence.client_id, nodes.name FROM unisono.presence JOIN unisono.nodes USING (node_id)
ORDER BY presence.client_id LIMIT %(limit)b;

-- name: tell
SELECT pg_notify('unisono_told', payload) FROM unnest(%(payloads)b) AS asked (payload);

-- name: lock_claims
-- A claim of another node waits for this group, or this group sees it. Ordered, so that nodes do not deadlock.
SELECT client_id, node_id, conn FROM unisono.presence
WHERE client_id = ANY (%(clients)b) ORDER BY client_id FOR SHARE;

-- name: append_events
WITH fresh AS (
    INSERT INTO unisono.events (committed_id, id, client_id, partitions, event, hash, status_updated_at, author)
    SELECT * FROM unnest(%(committed_ids)b, %(ids)b, %(client_ids)b, %(partitions)b, %(events)b, %(hashes)b,
                         %(times)b, %(authors)b)
), placed AS (
    INSERT INTO unisono.event_partitions (partition, committed_id)
    SELECT * FROM unnest(%(place_partitions)b, %(place_ids)b)
)
UPDATE unisono.head SET committed_id = %(head)b, status_updated_at = %(time)b
WHERE one AND committed_id = %(base)b
RETURNING pg_notify('unisono', committed_id::text);

-- Reading.

-- name: head
SELECT committed_id FROM unisono.head WHERE one;

-- name: extent
SELECT head.pruned_to, head.committed_id, keeping.archive
FROM unisono.head, unisono.keeping WHERE head.one AND keeping.one;

-- name: pruned_to
SELECT pruned_to FROM unisono.head WHERE one;

-- name: page_pruned_to
SELECT head.pruned_to, (
    SELECT max(pruned_partitions.committed_id)
    FROM unnest(%(partitions)b) AS asked (partition)
    JOIN unisono.pruned_partitions ON pruned_partitions.partition = asked.partition COLLATE "C"
    WHERE head.pruned_to > %(since)b
)
FROM unisono.head WHERE head.one;

-- name: last_before
-- The last old event before the first young one.
SELECT coalesce((
    SELECT committed_id FROM unisono.events
    WHERE committed_id <= %(upto)b AND status_updated_at < %(time)b AND committed_id < coalesce((
        SELECT committed_id FROM unisono.events
        WHERE committed_id <= %(upto)b AND status_updated_at >= %(time)b AND status_updated_at <= %(now)b
        ORDER BY committed_id LIMIT 1
    ), %(upto)b + 1)
    ORDER BY committed_id DESC LIMIT 1
), pruned_to) FROM unisono.head WHERE one;

-- name: last_status_updated_at
SELECT status_updated_at FROM unisono.head WHERE one;

-- name: identity
SELECT head.committed_id, head.log_id::text,
       (SELECT events.id FROM unisono.events WHERE events.committed_id = %(at)b)
FROM unisono.head WHERE head.one;

-- Identity.

-- name: log_identity
SELECT replace(log_id::text, '-', ''), log_epoch FROM unisono.head WHERE one;

-- name: new_epoch
-- Larger than any epoch before, also after a restore of an older database: the time in milliseconds.
UPDATE unisono.head SET log_epoch = greatest(log_epoch + 1, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
WHERE one RETURNING pg_notify('unisono', '');

-- name: set_identity
UPDATE unisono.head SET log_id = %(log_id)s::uuid, log_epoch = %(log_epoch)s WHERE one
RETURNING pg_notify('unisono', '');

-- name: read_location
SELECT place FROM unisono.head WHERE one;

-- name: location_cluster
SELECT system_identifier::text FROM pg_control_system();

-- name: location_timeline
SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8);

-- name: location_database
SELECT oid::text FROM pg_database WHERE datname = current_database();

-- name: location_table
SELECT 'unisono.head'::regclass::oid::text;

-- name: change_location
-- Only the first node that notices the change updates the row.
UPDATE unisono.head SET place = %(after)s, log_epoch = CASE WHEN %(new)s THEN
    greatest(log_epoch + 1, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) ELSE log_epoch END
WHERE one AND place IS NOT DISTINCT FROM %(before)s RETURNING log_epoch, pg_notify('unisono', '');

-- name: next_ids
-- The first ids of each partition, after an id per partition and up to a common one, at most `each` of each.
-- Partitions are returned as positions in the arrays.
SELECT asked.place, near.committed_id
FROM unnest(%(partitions)b, %(after)b) WITH ORDINALITY AS asked (partition, after, place)
CROSS JOIN LATERAL (
    SELECT committed_id FROM unisono.event_partitions
    WHERE event_partitions.partition = asked.partition COLLATE "C"
      AND committed_id > asked.after AND committed_id <= %(until)b
    ORDER BY committed_id LIMIT %(each)b
) AS near
ORDER BY asked.place, near.committed_id;

-- name: events_by_id
-- Ids ascending. octet_length does not read event text; it is read only for the records that fit.
WITH sized AS (
    SELECT asked.committed_id, found.id, found.client_id, found.partitions, found.event, found.hash,
           found.status_updated_at, found.author, row_number() OVER nearest AS place,
           sum(octet_length(found.event)) OVER nearest AS reached
    FROM unnest(%(ids)b) AS asked (committed_id) CROSS JOIN LATERAL (
        SELECT * FROM unisono.events WHERE events.committed_id = asked.committed_id OFFSET 0
    ) AS found
    WINDOW nearest AS (ORDER BY asked.committed_id ROWS UNBOUNDED PRECEDING)
)
SELECT committed_id, id, client_id, partitions, event, hash, status_updated_at, author
FROM sized WHERE place = 1 OR reached <= %(bytes_max)b ORDER BY committed_id;

-- name: any_pruned_after
SELECT 1 FROM unnest(%(partitions)b, %(after)b) AS asked (partition, after)
JOIN unisono.pruned_partitions ON pruned_partitions.partition = asked.partition COLLATE "C"
WHERE pruned_partitions.committed_id > asked.after LIMIT 1;

-- name: page
-- One index range per partition, limited to the page; `due` counts the ids up to one past the page. octet_length does
-- not read event text; it is read only for the records that fit. OFFSET 0 fixes the join order.
WITH ids AS MATERIALIZED (
    SELECT DISTINCT near.committed_id
    FROM unnest(%(partitions)b) AS asked (partition)
    CROSS JOIN LATERAL (
        SELECT committed_id FROM unisono.event_partitions
        WHERE event_partitions.partition = asked.partition COLLATE "C"
          AND committed_id > %(since)b AND committed_id <= %(upto)b
        ORDER BY committed_id LIMIT %(limit)b + 1
    ) AS near
    ORDER BY near.committed_id LIMIT %(limit)b + 1
), sized AS (
    SELECT ids.committed_id, found.id, found.client_id, found.partitions, found.event, found.hash,
           found.status_updated_at, found.author, (SELECT count(*) FROM ids) AS due, row_number() OVER nearest AS place,
           sum(octet_length(found.event)) OVER nearest AS reached
    FROM ids CROSS JOIN LATERAL (
        SELECT * FROM unisono.events WHERE events.committed_id = ids.committed_id OFFSET 0
    ) AS found
    WINDOW nearest AS (ORDER BY ids.committed_id ROWS UNBOUNDED PRECEDING)
)
SELECT committed_id, id, client_id, partitions, event, hash, status_updated_at, author, due
FROM sized
WHERE place <= %(limit)b AND (place = 1 OR reached <= %(bytes_max)b)
ORDER BY committed_id;

-- name: newest_page
-- As `page`, of one partition and descending.
WITH ids AS MATERIALIZED (
    SELECT committed_id FROM unisono.event_partitions
    WHERE partition = %(partition)b COLLATE "C" AND committed_id <= %(upto)b
    ORDER BY committed_id DESC LIMIT %(limit)b + 1
), sized AS (
    SELECT ids.committed_id, found.id, found.client_id, found.partitions, found.event, found.hash,
           found.status_updated_at, found.author, (SELECT count(*) FROM ids) AS due, row_number() OVER nearest AS place,
           sum(octet_length(found.event)) OVER nearest AS reached
    FROM ids CROSS JOIN LATERAL (
        SELECT * FROM unisono.events WHERE events.committed_id = ids.committed_id OFFSET 0
    ) AS found
    WINDOW nearest AS (ORDER BY ids.committed_id DESC ROWS UNBOUNDED PRECEDING)
)
SELECT committed_id, id, client_id, partitions, event, hash, status_updated_at, author, due
FROM sized
WHERE place <= %(limit)b AND (place = 1 OR reached <= %(bytes_max)b)
ORDER BY committed_id DESC;

-- name: scan
SELECT committed_id, id, client_id, partitions, event, hash, status_updated_at, author
FROM (
    SELECT *, sum(octet_length(event)) OVER (ORDER BY committed_id) - octet_length(event) AS bytes_before
    FROM unisono.events WHERE committed_id > %(since)b AND committed_id <= %(upto)b
    ORDER BY committed_id LIMIT %(limit)b
) AS read
WHERE bytes_before < %(bytes_max)b ORDER BY committed_id;

-- Snapshots.

-- name: lock_snapshots_shared
-- Locked while snapshots are written; an erasure waits for it, and writers that waited see the erasure.
SELECT pg_advisory_xact_lock_shared(hashtextextended('unisono.snapshots', 0));

-- name: lock_snapshots_exclusive
SELECT pg_advisory_xact_lock(hashtextextended('unisono.snapshots', 0));

-- name: put_snapshots
-- No snapshot that was folded before the last erasure. One of another model digest is replaced, however new it is.
INSERT INTO unisono.snapshots (partition, model_version, committed_id, created_at, state, model_digest)
SELECT fresh.*
FROM unnest(%(partitions)b, %(versions)b, %(committed_ids)b, %(times)b, %(states)b, %(digests)b) AS fresh
CROSS JOIN unisono.keeping WHERE keeping.one AND keeping.erasures = %(erasures)b
ON CONFLICT (partition, model_version) DO UPDATE
SET committed_id = excluded.committed_id, created_at = excluded.created_at, state = excluded.state,
    model_digest = excluded.model_digest
WHERE excluded.committed_id >= snapshots.committed_id OR excluded.model_digest <> snapshots.model_digest;

-- name: snapshot
SELECT committed_id, state, created_at FROM unisono.snapshots
WHERE partition = %(partition)b AND model_version = %(version)b AND model_digest = %(digest)b;

-- name: snapshot_sizes
SELECT snapshots.partition, snapshots.committed_id, octet_length(snapshots.state)
FROM unnest(%(partitions)b) AS asked (partition)
JOIN unisono.snapshots ON snapshots.partition = asked.partition COLLATE "C"
WHERE snapshots.model_version = %(version)b AND snapshots.model_digest = %(digest)b;

-- name: snapshots_of
SELECT snapshots.partition, snapshots.committed_id, snapshots.state, snapshots.created_at
FROM unnest(%(partitions)b) AS asked (partition)
JOIN unisono.snapshots ON snapshots.partition = asked.partition COLLATE "C"
WHERE snapshots.model_version = %(version)b AND snapshots.model_digest = %(digest)b;

-- name: all_snapshots
SELECT partition, committed_id, model_version, state, created_at, model_digest FROM unisono.snapshots
WHERE (partition, model_version) > (%(partition)b, %(version)b) ORDER BY partition, model_version
LIMIT %(limit)b;

-- name: snapshots_in
SELECT snapshots.partition, committed_id, model_version, state, created_at, model_digest
FROM unnest(%(partitions)b) AS asked (partition)
JOIN unisono.snapshots ON snapshots.partition = asked.partition COLLATE "C";

-- name: watermarks
SELECT partition, committed_id FROM unisono.snapshots
WHERE partition > %(after)b AND model_version = %(version)b AND model_digest = %(digest)b
ORDER BY partition LIMIT %(limit)b;

-- name: names_from
-- Of names from `first` on. A loose index scan from name to name: the cost is that of the names, not of their events.
WITH RECURSIVE present AS (
    (SELECT partition FROM unisono.event_partitions
     WHERE partition > %(after)b AND partition >= %(first)b ORDER BY partition LIMIT 1)
    UNION ALL
    SELECT (SELECT following.partition FROM unisono.event_partitions AS following
            WHERE following.partition > present.partition ORDER BY following.partition LIMIT 1)
    FROM present WHERE present.partition IS NOT NULL
), some_present AS (
    SELECT partition FROM present WHERE partition IS NOT NULL LIMIT %(limit)b
), some_pruned AS (
    SELECT partition FROM unisono.pruned_partitions
    WHERE partition > %(after)b AND partition >= %(first)b ORDER BY partition LIMIT %(limit)b
)
SELECT partition FROM some_present UNION SELECT partition FROM some_pruned ORDER BY partition LIMIT %(limit)b;

-- name: partition_size
-- Of the newest events, `limit` at most.
SELECT count(*), min(committed_id), max(committed_id) FROM (
    SELECT committed_id FROM unisono.event_partitions
    WHERE partition = %(partition)b ORDER BY committed_id DESC LIMIT %(limit)b
) AS newest;

-- name: newest_ids
SELECT committed_id FROM unisono.event_partitions
WHERE partition = %(partition)b AND committed_id <= %(upto)b ORDER BY committed_id DESC LIMIT %(limit)b;

-- Maintenance, by the owner of the log.

-- name: lock_maintenance
SELECT pg_advisory_xact_lock(hashtextextended('unisono.keeping', 0));

-- name: set_archive
UPDATE unisono.keeping SET archive = %(location)b WHERE one;

-- name: prune_state
SELECT head.pruned_to, head.committed_id, keeping.archive,
       EXISTS (SELECT 1 FROM unisono.db_version WHERE number = %(number)b)
FROM unisono.head, unisono.keeping WHERE head.one AND keeping.one;

-- name: oldest_events
SELECT committed_id, octet_length(event) FROM unisono.events
WHERE committed_id > %(since)b AND committed_id <= %(upto)b ORDER BY committed_id LIMIT %(limit)b;

-- name: remember_pruned_ids
INSERT INTO unisono.pruned (id, committed_id, client_id, status_updated_at, hash)
SELECT id, committed_id, client_id, status_updated_at, hash FROM unisono.events
WHERE committed_id > %(since)b AND committed_id <= %(upto)b;

-- name: prune_event_partitions
-- Deletes index rows by their full keys, which come from the partitions of the events.
WITH gone AS (
    DELETE FROM unisono.event_partitions
    USING unnest(%(partitions)b, %(ids)b) AS asked (partition, committed_id)
    WHERE event_partitions.partition = asked.partition COLLATE "C"
      AND event_partitions.committed_id = asked.committed_id
    RETURNING event_partitions.partition, event_partitions.committed_id
)
INSERT INTO unisono.pruned_partitions AS known (partition, committed_id)
SELECT partition, max(committed_id) FROM gone GROUP BY partition
ON CONFLICT (partition) DO UPDATE SET committed_id = greatest(known.committed_id, excluded.committed_id);

-- name: partitions_of_events
SELECT committed_id, partitions FROM unisono.events
WHERE committed_id > %(since)b AND committed_id <= %(upto)b;

-- name: prune_events
DELETE FROM unisono.events WHERE committed_id > %(since)b AND committed_id <= %(upto)b;

-- name: advance_pruned_to
-- Last, since groups wait from here to the commit.
UPDATE unisono.head SET pruned_to = %(upto)b WHERE one AND pruned_to = %(since)b;

-- name: events_to_erase
SELECT committed_id, partitions, event FROM unisono.events WHERE committed_id = ANY (%(ids)b);

-- name: replace_events
UPDATE unisono.events SET event = asked.event, author = ''
FROM unnest(%(ids)b, %(events)b) AS asked (committed_id, event) WHERE events.committed_id = asked.committed_id;

-- name: drop_snapshots
DELETE FROM unisono.snapshots WHERE partition = ANY (%(partitions)b);

-- name: count_erasure
UPDATE unisono.keeping SET erasures = erasures + 1, unclean = true WHERE one
RETURNING erasures, pg_notify('unisono', '');

-- name: erasures
SELECT erasures FROM unisono.keeping WHERE one;

-- name: read_unclean
SELECT erasures, unclean FROM unisono.keeping WHERE one;

-- name: set_clean
UPDATE unisono.keeping SET unclean = false WHERE one AND erasures = %(erasures)b;

-- name: drop_event_statistics
-- A column whose type is set loses the samples of its values that the planner gathered.
ALTER TABLE unisono.events ALTER event TYPE bytea;

-- name: drop_state_statistics
ALTER TABLE unisono.snapshots ALTER state TYPE bytea;

-- name: rewrite_tables
VACUUM (FULL) unisono.events, unisono.snapshots;

-- name: vacuum_tables
VACUUM unisono.events, unisono.event_partitions, unisono.snapshots, unisono.pruned;

-- Nodes and presence.

-- name: register_node
INSERT INTO unisono.nodes (node_id, name, knows)
VALUES (coalesce(%(node_id)b, nextval('unisono.node_ids')), %(name)b, %(knows)b)
ON CONFLICT (node_id) DO UPDATE SET seen_at = now()
RETURNING node_id;

-- name: list_nodes
-- A node that was started again has a new row beside the one that has not expired yet.
SELECT DISTINCT ON (name) name, extract(epoch FROM now() - seen_at)::float8
FROM unisono.nodes ORDER BY name, seen_at DESC LIMIT %(limit)b;

-- name: heartbeat
UPDATE unisono.nodes SET seen_at = now() WHERE node_id = %(node_id)b RETURNING node_id;

-- name: claim
-- The row keeps its previous holder, so a claim that waited for another one still learns whom it replaced.
WITH taken AS (
    INSERT INTO unisono.presence AS known (client_id, node_id, conn, epoch)
    SELECT asked.client_id, %(node_id)b, asked.conn, nextval('unisono.epochs')
    FROM unnest(%(clients)b, %(conns)b) AS asked (client_id, conn) ORDER BY asked.client_id COLLATE "C"
    ON CONFLICT (client_id) DO UPDATE
    SET node_id = excluded.node_id, conn = excluded.conn, epoch = nextval('unisono.epochs'),
        previous_node_id = known.node_id, previous_conn = known.conn
    RETURNING client_id, epoch, previous_node_id, previous_conn
), notified AS (
    INSERT INTO unisono.replacements (node_id, conn)
    SELECT taken.previous_node_id, taken.previous_conn
    FROM taken JOIN unisono.nodes ON nodes.node_id = taken.previous_node_id
    WHERE taken.previous_node_id <> %(node_id)b
    ON CONFLICT DO NOTHING
    RETURNING node_id
)
SELECT client_id, epoch,
       (SELECT count(pg_notify('unisono_node_' || node_id, '')) FROM (SELECT DISTINCT node_id FROM notified) AS nodes)
FROM taken;

-- name: release
-- Claims, fences and releases lock rows of presence in the same order.
WITH given_up AS (
    SELECT presence.client_id
    FROM unnest(%(clients)b, %(conns)b) AS asked (client_id, conn)
    JOIN unisono.presence ON presence.client_id = asked.client_id COLLATE "C"
    WHERE presence.node_id = %(node_id)b AND presence.conn = asked.conn
    ORDER BY presence.client_id FOR UPDATE OF presence
)
DELETE FROM unisono.presence USING given_up WHERE presence.client_id = given_up.client_id;

-- name: take_replacements
DELETE FROM unisono.replacements WHERE node_id = %(node_id)b RETURNING conn;

-- name: lost_claims
-- The given claims that are not in force any more.
SELECT asked.conn FROM unnest(%(clients)b, %(conns)b) AS asked (client_id, conn)
WHERE NOT EXISTS (
    SELECT 1 FROM unisono.presence
    WHERE presence.client_id = asked.client_id COLLATE "C" AND presence.node_id = %(node_id)b
      AND presence.conn = asked.conn
);

-- name: expire_presence
-- Claims of dead nodes, a batch at a time, skipping locked rows.
DELETE FROM unisono.presence WHERE client_id IN (
    SELECT presence.client_id FROM unisono.presence
    JOIN unisono.nodes ON nodes.node_id = presence.node_id
    WHERE nodes.seen_at < now() - make_interval(secs => %(dead_after_s)b)
    LIMIT %(limit)b FOR UPDATE OF presence SKIP LOCKED
);

-- name: expire_nodes
DELETE FROM unisono.nodes
WHERE seen_at < now() - make_interval(secs => %(dead_after_s)b)
  AND NOT EXISTS (SELECT 1 FROM unisono.presence WHERE presence.node_id = nodes.node_id);

-- name: expire_replacements
DELETE FROM unisono.replacements
WHERE NOT EXISTS (SELECT 1 FROM unisono.nodes WHERE nodes.node_id = replacements.node_id);

-- name: remove_presence
WITH given_up AS MATERIALIZED (
    SELECT client_id FROM unisono.presence WHERE node_id = %(node_id)b ORDER BY client_id FOR UPDATE
)
DELETE FROM unisono.presence USING given_up
WHERE presence.client_id = given_up.client_id AND presence.node_id = %(node_id)b;

-- name: remove_node
DELETE FROM unisono.nodes WHERE node_id = %(node_id)b;

-- Models.

-- name: published_model
SELECT models.version, models.digest, models.files
FROM unisono.head JOIN unisono.models ON models.version = head.model_version WHERE head.one;

-- name: insert_model
INSERT INTO unisono.models (version, digest, files, published_by)
VALUES (%(version)b, %(digest)b, %(files)b, %(node)b);

-- name: set_model_in_force
UPDATE unisono.head SET model_version = %(version)b WHERE one RETURNING pg_notify('unisono', '');

-- The schema.

-- name: lock_migrations
SELECT pg_advisory_xact_lock(hashtextextended('unisono.db_version', 0));

-- name: schema_exists
SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = 'unisono'), to_regclass('unisono.db_version') IS NOT NULL;

-- name: versions
SELECT number, name FROM unisono.db_version ORDER BY number;

-- name: record_version
INSERT INTO unisono.db_version (number, name) VALUES (%(number)b, %(name)b);

-- name: older_nodes
SELECT name FROM unisono.nodes
WHERE knows < %(number)b AND seen_at > now() - make_interval(secs => %(dead_after_s)b) ORDER BY name;

-- name: status
SELECT head.committed_id, head.pruned_to, head.status_updated_at, head.model_version,
       replace(head.log_id::text, '-', ''), head.log_epoch, (SELECT count(*) FROM unisono.presence), 
       (SELECT count(*) FROM unisono.snapshots),
       pg_total_relation_size('unisono.events') + pg_total_relation_size('unisono.event_partitions'),
       current_setting('server_version'), current_setting('synchronous_standby_names')
FROM unisono.head WHERE head.one;

-- name: nodes
SELECT node_id, name, knows, extract(epoch FROM now() - seen_at)::float8,
       extract(epoch FROM now() - started_at)::float8
FROM unisono.nodes ORDER BY started_at;

-- Copying.

-- name: start_pruned
UPDATE unisono.head SET committed_id = %(pruned_to)b, pruned_to = %(pruned_to)b, status_updated_at = %(time)b
WHERE one AND committed_id = 0;

-- name: copy_extent
SELECT committed_id, pruned_to, status_updated_at FROM unisono.head WHERE one;

-- name: pruned_ids
SELECT id, committed_id, client_id, status_updated_at, hash FROM unisono.pruned
WHERE id > %(after)b AND committed_id <= %(upto)b ORDER BY id LIMIT %(limit)b;

-- name: pruned_partitions
SELECT partition, committed_id FROM unisono.pruned_partitions
WHERE partition > %(after)b ORDER BY partition LIMIT %(limit)b;

-- name: insert_pruned_ids
INSERT INTO unisono.pruned (id, committed_id, client_id, status_updated_at, hash)
SELECT * FROM unnest(%(ids)b, %(committed_ids)b, %(client_ids)b, %(times)b, %(hashes)b)
ON CONFLICT (id) DO NOTHING;

-- name: insert_pruned_partitions
INSERT INTO unisono.pruned_partitions AS known (partition, committed_id)
SELECT * FROM unnest(%(partitions)b, %(committed_ids)b)
ON CONFLICT (partition) DO UPDATE SET committed_id = greatest(known.committed_id, excluded.committed_id);

-- name: count_snapshots
SELECT count(*) FROM unisono.snapshots;

-- name: count_event_partitions
SELECT count(*) FROM unisono.event_partitions WHERE committed_id > %(since)b;

-- For `unisono check`: short reads along indexes, so that nothing waits for them.

-- name: check_schema
-- Everything the migrations make, as the catalogue shows it in every version of PostgreSQL: kind, table, name, form.
SELECT CASE relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, relname::text, relname::text,
       CASE relpersistence WHEN 'p' THEN 'logged' ELSE 'not logged' END
FROM pg_class WHERE relnamespace = to_regnamespace('unisono') AND relkind IN ('r', 'S')
UNION ALL
SELECT 'column', owner.relname::text, owner.relname || '.' || attname,
       concat_ws(' ', format_type(atttypid, atttypmod), 'COLLATE ' || nullif(collname, 'default'),
                 CASE WHEN attnotnull THEN 'NOT NULL' END, 'DEFAULT ' || pg_get_expr(adbin, adrelid))
FROM pg_class AS owner
JOIN pg_attribute ON attrelid = owner.oid AND attnum > 0 AND NOT attisdropped
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
LEFT JOIN pg_collation ON pg_collation.oid = attcollation
WHERE owner.relnamespace = to_regnamespace('unisono') AND owner.relkind = 'r'
UNION ALL
SELECT 'index', owner.relname::text, made.relname::text,
       pg_get_indexdef(made.oid) || CASE WHEN indisvalid THEN '' ELSE ' INVALID' END
FROM pg_class AS made
JOIN pg_index ON indexrelid = made.oid
JOIN pg_class AS owner ON owner.oid = indrelid
WHERE made.relnamespace = to_regnamespace('unisono')
UNION ALL
SELECT 'constraint', owner.relname::text, owner.relname || '.' || conname, pg_get_constraintdef(pg_constraint.oid)
FROM pg_constraint JOIN pg_class AS owner ON owner.oid = conrelid
WHERE connamespace = to_regnamespace('unisono') AND contype = 'c'
ORDER BY 2, 1 DESC, 3;

-- name: check_head
SELECT head.committed_id, head.pruned_to, head.status_updated_at,
       (SELECT min(committed_id) FROM unisono.events), (SELECT max(committed_id) FROM unisono.events)
FROM unisono.head;

-- name: check_extent
SELECT (SELECT min(committed_id) FROM unisono.events), (SELECT max(committed_id) FROM unisono.events);

-- name: check_maintenance
SELECT keeping.archive,
       NOT EXISTS (SELECT 1 FROM unisono.head WHERE model_version IS NOT NULL
                   AND NOT EXISTS (SELECT 1 FROM unisono.models WHERE models.version = head.model_version))
FROM unisono.keeping;

-- name: check_index_size
-- What the last VACUUM counted.
SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = to_regclass('unisono.event_partitions');

-- name: check_events
-- octet_length does not read event text; it is read only for the events that fit, at least one.
SELECT committed_id, id, client_id, partitions, event, hash, status_updated_at, author
FROM (
    SELECT *, sum(octet_length(event)) OVER nearest AS reached, row_number() OVER nearest AS place
    FROM (
        SELECT * FROM unisono.events WHERE committed_id > %(since)b AND committed_id <= %(upto)b
        ORDER BY committed_id LIMIT %(limit)b
    ) AS next_ones
    WINDOW nearest AS (ORDER BY committed_id ROWS UNBOUNDED PRECEDING)
) AS sized
WHERE place = 1 OR reached <= %(bytes_max)b
ORDER BY committed_id;

-- name: check_events_of
SELECT events.id, events.committed_id
FROM unnest(%(ids)b) AS asked (id) JOIN unisono.events ON events.id = asked.id COLLATE "C";

-- name: check_remembered_of
SELECT pruned.id FROM unnest(%(ids)b) AS asked (id) JOIN unisono.pruned ON pruned.id = asked.id COLLATE "C";

-- name: check_missing_partitions
SELECT asked.partition, asked.committed_id
FROM unnest(%(partitions)b, %(committed_ids)b) AS asked (partition, committed_id)
WHERE NOT EXISTS (
    SELECT 1 FROM unisono.event_partitions
    WHERE event_partitions.partition = asked.partition COLLATE "C"
      AND event_partitions.committed_id = asked.committed_id
);

-- name: check_duplicates
SELECT id, min(committed_id), count(*) FROM unisono.events GROUP BY id HAVING count(*) > 1;

-- name: check_pruned
SELECT id, committed_id, octet_length(hash) FROM unisono.pruned
WHERE id > %(after)b ORDER BY id LIMIT %(limit)b;

-- name: check_index
SELECT event_partitions.partition, event_partitions.committed_id, events.partitions
FROM unisono.event_partitions LEFT JOIN unisono.events ON events.committed_id = event_partitions.committed_id
WHERE (event_partitions.partition, event_partitions.committed_id) > (%(partition)b, %(committed_id)b)
ORDER BY event_partitions.partition, event_partitions.committed_id LIMIT %(limit)b;

-- name: check_snapshots
SELECT partition, model_version, committed_id, (SELECT head.committed_id FROM unisono.head WHERE head.one)
FROM unisono.snapshots WHERE (partition, model_version) > (%(partition)b, %(version)b)
ORDER BY partition, model_version LIMIT %(limit)b;
