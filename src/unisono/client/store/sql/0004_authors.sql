-- Who submitted an event: see `author` in schema.sql. A row whose checksum was wrong before stays so.
ALTER TABLE events ADD COLUMN author TEXT NOT NULL DEFAULT '';
UPDATE events SET checksum = row_checksum(committed_id, id, client_id, partitions, event, status_updated_at, author)
WHERE checksum = row_checksum(committed_id, id, client_id, partitions, event, status_updated_at);
