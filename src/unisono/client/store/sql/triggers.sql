-- Rows that are updated in place get a new checksum by these triggers; the others get theirs when they are inserted.
-- row_checksum is a function of this library: see checksums.py.

CREATE TRIGGER partitions_inserted AFTER INSERT ON partitions BEGIN
    UPDATE partitions SET checksum = row_checksum(name) + 3 * number + 5 * cursor + 7 * known + 11 * floor
    WHERE number = new.number;
END;

-- Every event moves the cursor of each partition, so the checksum changes by what its numbers change by.
CREATE TRIGGER partitions_updated AFTER UPDATE OF cursor, known, floor ON partitions BEGIN
    UPDATE partitions SET checksum = checksum + 5 * (new.cursor - old.cursor) + 7 * (new.known - old.known)
        + 11 * (new.floor - old.floor) WHERE number = new.number;
END;
