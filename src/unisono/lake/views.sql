-- The tables of a query in DuckDB, over the datasets lake_log, lake_partitions and lake_snapshots. What a running
-- export has added after the head of the lake is not read.

CREATE VIEW events AS
SELECT *, epoch_ms(status_updated_at) AS committed_at FROM lake_log WHERE committed_id <= getvariable('head');

CREATE VIEW partition_events AS
SELECT *, epoch_ms(status_updated_at) AS committed_at FROM lake_partitions WHERE committed_id <= getvariable('head');

CREATE VIEW snapshots AS
SELECT partition, committed_id, model_version, events, skipped, decode(state) AS state,
       epoch_ms(created_at) AS created_at
FROM lake_snapshots;
