-- Which past of the log this is (DUR-08), beside the log_id that it has from the beginning, and which content of a model
-- folded a snapshot (DUR-07). Only adds: nodes that do not know it go on, and write snapshots that newer nodes do not use
-- unless no model is in force, when the empty digest is the right one.
SET LOCAL lock_timeout = '2s';

-- `place` tells where the log was last opened: the cluster's own id, its timeline, the database, the table. When one of
-- them is another, the log was restored, or a standby was promoted, and what it had told before may be missing.
ALTER TABLE unisono.head ADD COLUMN log_epoch bigint NOT NULL DEFAULT 1, ADD COLUMN place text;

ALTER TABLE unisono.snapshots ADD COLUMN model_digest text COLLATE "C" NOT NULL DEFAULT '';

-- Whoever could advance the head can note these, too.
DO $$
DECLARE
    writer name;
BEGIN
    FOR writer IN
        SELECT DISTINCT roles.rolname FROM pg_attribute
        CROSS JOIN LATERAL aclexplode(pg_attribute.attacl) AS granted
        JOIN pg_roles AS roles ON roles.oid = granted.grantee
        WHERE pg_attribute.attrelid = 'unisono.head'::regclass AND pg_attribute.attname = 'committed_id'
          AND granted.privilege_type = 'UPDATE'
    LOOP
        EXECUTE format('GRANT UPDATE (log_epoch, place) ON unisono.head TO %I', writer);
    END LOOP;
END
$$;
