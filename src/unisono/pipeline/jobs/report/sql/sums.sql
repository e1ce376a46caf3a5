-- Adds up what executors counted. The same text runs on Spark and on DuckDB, which replace what stands in braces:
-- {sums} and {places} have the rows of log_sums.py and place_sums.py, {drawn} the kinds with a colour of their own.

-- name: clients
SELECT count(DISTINCT name) AS clients FROM {sums} WHERE counted = 'client'

-- name: per_step
SELECT step, CAST(sum(events) AS BIGINT) AS events, CAST(sum(bytes) AS BIGINT) AS bytes,
    count(DISTINCT name) AS clients
FROM {sums} WHERE counted = 'client' GROUP BY step

-- name: kinds
SELECT name AS type, more AS schema, CAST(sum(events) AS BIGINT) AS events, CAST(sum(bytes) AS BIGINT) AS bytes,
    max(high) AS largest
FROM {sums} WHERE counted = 'kind' GROUP BY name, more
ORDER BY events DESC, type ASC NULLS FIRST, schema ASC NULLS FIRST LIMIT {rows_max}

-- name: count_kinds
SELECT count(*) AS kinds FROM (SELECT DISTINCT name, more FROM {sums} WHERE counted = 'kind') AS found

-- name: kinds_per_step
SELECT step, place, CAST(sum(events) AS BIGINT) AS events
FROM (
    SELECT added.step AS step, coalesce(shown.place, -1) AS place, added.events AS events
    FROM {sums} AS added LEFT JOIN {drawn} AS shown
        ON added.name IS NOT DISTINCT FROM shown.name AND added.more IS NOT DISTINCT FROM shown.more
    WHERE added.counted = 'kind'
) AS placed
GROUP BY step, place

-- name: busiest_clients
WITH busiest AS (
    SELECT name AS client_id, CAST(sum(events) AS BIGINT) AS events, CAST(sum(bytes) AS BIGINT) AS bytes,
        min(low) AS first_at, max(high) AS last_at
    FROM {sums} WHERE counted = 'client' GROUP BY name ORDER BY events DESC, client_id LIMIT {top}
), written AS (
    SELECT client_id, CAST(sum(partitions) AS BIGINT) AS partitions
    FROM {places} WHERE client_id IN (SELECT client_id FROM busiest) GROUP BY client_id
)
SELECT busiest.client_id AS client_id, events, bytes, partitions, first_at, last_at
FROM busiest JOIN written ON busiest.client_id = written.client_id
ORDER BY events DESC, client_id

-- name: not_by_name
SELECT counted, step, CAST(sum(events) AS BIGINT) AS events, CAST(sum(bytes) AS BIGINT) AS bytes,
    min(low) AS low, max(high) AS high
FROM {sums} WHERE counted NOT IN ('client', 'kind') GROUP BY counted, step

-- name: summaries
SELECT summary FROM {places} WHERE summary IS NOT NULL
