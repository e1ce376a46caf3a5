-- What the role of a running node may do, and no more: events are added and read, never changed or removed.
GRANT USAGE ON SCHEMA unisono TO {role};
GRANT SELECT ON unisono.db_version, unisono.pruned, unisono.pruned_partitions, unisono.keeping TO {role};
GRANT SELECT, INSERT ON unisono.events, unisono.event_partitions, unisono.models TO {role};
GRANT SELECT, UPDATE (committed_id, status_updated_at, model_version, log_epoch, place) ON unisono.head TO {role};
GRANT SELECT, INSERT, UPDATE ON unisono.snapshots TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON unisono.nodes, unisono.presence, unisono.replacements, unisono.revocations
    TO {role};
GRANT USAGE ON SEQUENCE unisono.node_ids, unisono.epochs TO {role};
