-- Which drafts belong to one transaction: see `batch` in schema.sql. A row whose checksum was wrong before stays so.
-- draft_triggers.sql runs after this.

DROP TRIGGER IF EXISTS drafts_inserted;
DROP TRIGGER IF EXISTS drafts_updated;
ALTER TABLE drafts ADD COLUMN batch INTEGER;
UPDATE drafts SET checksum = row_checksum(
    draft_clock, id, partitions, event, status, reason, errors, created_at, status_updated_at, batch)
WHERE checksum = row_checksum(
    draft_clock, id, partitions, event, status, reason, errors, created_at, status_updated_at);
