-- triggers.sql runs after this.

ALTER TABLE drafts ADD COLUMN status_updated_at INTEGER;
ALTER TABLE drafts ADD COLUMN checksum INTEGER;
UPDATE drafts SET checksum = row_checksum(
    draft_clock, id, partitions, event, status, reason, errors, created_at, status_updated_at);

ALTER TABLE events ADD COLUMN checksum INTEGER;
UPDATE events SET checksum = row_checksum(committed_id, id, client_id, partitions, event, status_updated_at);

ALTER TABLE snapshots ADD COLUMN checksum INTEGER;
UPDATE snapshots SET checksum = row_checksum(partition, committed_id, model_version, state);

ALTER TABLE bases ADD COLUMN checksum INTEGER;
UPDATE bases SET checksum = row_checksum(partition, model_version, state);

ALTER TABLE partitions ADD COLUMN checksum INTEGER;
UPDATE partitions SET checksum = row_checksum(name) + 3 * number + 5 * cursor + 7 * known + 11 * floor;
