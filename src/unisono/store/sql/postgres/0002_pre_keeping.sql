-- What leaves the log, and what stays of it. Only adds: nodes that do not know it never look here, and nothing leaves
-- the log before 0003 has made sure that there are none of them.
SET LOCAL lock_timeout = '2s';

-- Deduplication remembers an event for ever (ORD-05), also after it has left `events`: an id is in one of the two.
CREATE TABLE unisono.pruned (
    id                text COLLATE "C" PRIMARY KEY,
    committed_id      bigint           NOT NULL,
    client_id         text COLLATE "C" NOT NULL,
    status_updated_at bigint           NOT NULL,
    hash              bytea            NOT NULL
);

-- The last event of each partition that has left: whoever asks for what came after it finds all of it in `events`.
CREATE TABLE unisono.pruned_partitions (
    partition    text COLLATE "C" PRIMARY KEY,
    committed_id bigint           NOT NULL
);

-- One row. `archive` names the lake that has what left; nothing leaves before it is set. `erasures` counts the times
-- something was erased: a node that has states from before them forgets them, and its snapshots are not taken.
-- `unclean`: something was erased, and its traces may still be in the tables' files.
CREATE TABLE unisono.keeping (
    one      boolean PRIMARY KEY CHECK (one),
    archive  text,
    erasures bigint  NOT NULL,
    unclean  boolean NOT NULL
);

INSERT INTO unisono.keeping VALUES (true, NULL, 0, false);

-- What PostgreSQL gathers to plan by would hold copies of texts and states, out of reach of an erasure.
ALTER TABLE unisono.events ALTER event SET STATISTICS 0;
ALTER TABLE unisono.snapshots ALTER state SET STATISTICS 0;

-- Whoever could read the log can read on.
DO $$
DECLARE
    reader name;
BEGIN
    FOR reader IN
        SELECT DISTINCT roles.rolname FROM pg_class
        CROSS JOIN LATERAL aclexplode(pg_class.relacl) AS granted
        JOIN pg_roles AS roles ON roles.oid = granted.grantee
        WHERE pg_class.oid = 'unisono.events'::regclass AND granted.privilege_type = 'SELECT'
          AND granted.grantee <> pg_class.relowner
    LOOP
        EXECUTE format('GRANT SELECT ON unisono.pruned, unisono.pruned_partitions, unisono.keeping TO %I', reader);
    END LOOP;
END
$$;
