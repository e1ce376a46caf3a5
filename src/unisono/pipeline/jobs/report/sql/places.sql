-- Counts a subset of the partitions, in DuckDB. `edits` has the rows as they stand in the files.

-- name: items
-- What each event edits (items.py); family is NULL where it names no item. A JSON value that has one spelling only is
-- named here. Other numbers, escapes and whole objects are left to Python.
CREATE TEMP TABLE items AS
WITH parsed AS (
    SELECT *,
        CASE WHEN type IN ('event', 'set', 'unset', 'treePush', 'treeUpdate', 'treeDelete', 'treeMove') THEN
            try(json_extract(event, [
                '$.payload.data.id', '$.payload.target', '$.payload.value.id', '$.payload.options.id'
            ])::VARCHAR[])
        END AS found
    FROM edits
), keyed AS (
    SELECT * EXCLUDE (found),
        CASE WHEN type = 'event' THEN 'event' WHEN starts_with(type, 'tree') THEN 'tree' ELSE 'path' END AS of_family,
        CASE WHEN type = 'event' THEN schema ELSE found[2] END AS found_place,
        CASE WHEN type = 'event' THEN found[1]
             WHEN type = 'treePush' THEN found[3]
             WHEN starts_with(type, 'tree') THEN found[4]
             ELSE '""' END AS found_node
    FROM parsed
), plain AS (
    SELECT *,
        regexp_full_match(found_node, '"[^"\\]*"|-?(0|[1-9][0-9]{0,14})|true|false')
        AND (type = 'event' OR regexp_full_match(found_place, '"[^"\\]*"|-?(0|[1-9][0-9]{0,14})|true|false'))
        AS is_plain
    FROM keyed
), named AS (
    SELECT *,
        CASE
            WHEN type = 'init' THEN {'family': 'path', 'place': '', 'node': ''}
            WHEN type IS NULL OR found_place IS NULL OR found_node IS NULL OR found_node = 'null' THEN NULL
            WHEN type <> 'event' AND found_place = 'null' THEN NULL
            WHEN NOT is_plain THEN odd_item(type, schema, event)
            ELSE {
                'family': of_family,
                'place': CASE
                    WHEN type = 'event' THEN regexp_replace(schema, '\.[^.]*$', '')
                    WHEN found_place[1] = '"' THEN found_place[2:-2]
                    ELSE found_place END,
                'node': CASE WHEN found_node[1] = '"' THEN found_node[2:-2] ELSE found_node END
            }
        END AS item
    FROM plain
)
SELECT partition, committed_id, client_id, at_ms, step, bytes,
    item.family AS family, item.place AS place, item.node AS node
FROM named

-- name: contested
CREATE TEMP TABLE contested AS
SELECT * FROM (
    SELECT partition, family, place, node, step, client_id, lag(client_id) OVER of_item AS other,
        at_ms - lag(at_ms) OVER of_item AS gap
    FROM items WHERE family IS NOT NULL
    WINDOW of_item AS (PARTITION BY partition, family, place, node ORDER BY committed_id)
) WHERE other <> client_id AND gap BETWEEN 0 AND $within_ms

-- name: partitions
CREATE TEMP TABLE partitions AS
SELECT partition, count(*) AS events, sum(bytes)::BIGINT AS bytes, count(DISTINCT client_id) AS clients,
    min(at_ms) AS first_at, max(at_ms) AS last_at
FROM items GROUP BY partition

-- name: per_step
SELECT step, count(DISTINCT partition), count(family), count(*) - count(family) FROM items GROUP BY step

-- name: contested_per_step
SELECT step, count(*) FROM contested GROUP BY step

-- name: sharing
SELECT clients, count(*) FROM partitions GROUP BY clients

-- name: busiest
FROM partitions ORDER BY events DESC, partition LIMIT $top

-- name: contests
SELECT count(*) AS contested, partition, family, place, node,
    len(list_distinct(flatten(list([client_id, other])))) AS clients, min(gap) AS closest_ms
FROM contested GROUP BY partition, family, place, node
ORDER BY contested DESC, partition, family, place, node LIMIT $top

-- name: contested_items
SELECT count(*) FROM (SELECT DISTINCT partition, family, place, node FROM contested)

-- name: written
SELECT client_id, count(DISTINCT partition) AS partitions, NULL::BLOB AS summary FROM items GROUP BY client_id
