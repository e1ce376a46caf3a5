-- The checksums of drafts: see triggers.sql.

CREATE TRIGGER drafts_inserted AFTER INSERT ON drafts BEGIN
    UPDATE drafts SET checksum = row_checksum(
        draft_clock, id, partitions, event, status, reason, errors, created_at, status_updated_at, batch)
    WHERE draft_clock = new.draft_clock;
END;

CREATE TRIGGER drafts_updated AFTER UPDATE OF
    draft_clock, id, partitions, event, status, reason, errors, created_at, status_updated_at, batch ON drafts BEGIN
    UPDATE drafts SET checksum = row_checksum(
        draft_clock, id, partitions, event, status, reason, errors, created_at, status_updated_at, batch)
    WHERE draft_clock = new.draft_clock;
END;
