-- The log of several nodes: committed events, append-only, with the three ways to find one (DUR-01): by
-- committed_id, by id, by (partition, committed_id); the head row that orders them; who holds which client.
--
-- How migrations are written, so that running nodes survive them:
--
--   * A file is NNNN_pre_what.sql or NNNN_post_what.sql. Files are applied in the order of their numbers, each in
--     one transaction, under an advisory lock; what was applied stands in unisono.db_version.
--   * A `pre` file only adds: tables, columns that are nullable or have a constant default, indexes, widened
--     checks. Nodes that do not know it go on working, reading and writing, while it runs and afterwards. It
--     takes no lock that makes a group wait noticeably: it sets a lock_timeout of its own and fails rather than
--     queue before everybody else.
--   * A `post` file takes away what only older nodes needed, and tightens. It is applied with
--     `unisono db migrate --finish`, which refuses while a node is alive that does not know it.
--   * A node starts when every `pre` file it knows has been applied, and no `post` file it does not know.
--   * A file that has been released is never changed.
--
-- Text: PostgreSQL's cannot hold U+0000, which ids and partition names may. In id, client_id and partition the
-- character U+0001 escapes: U+0001 "0" is U+0000, U+0001 U+0001 is U+0001. All other text stands as it is.

CREATE TABLE unisono.db_version (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE unisono.events (
    committed_id      bigint           PRIMARY KEY,
    status_updated_at bigint           NOT NULL,
    id                text COLLATE "C" NOT NULL,
    client_id         text COLLATE "C" NOT NULL,
    hash              bytea            NOT NULL,
    partitions        text COLLATE "C" NOT NULL,  -- a JSON array
    event             bytea            NOT NULL   -- canonical JSON, UTF-8
);

CREATE UNIQUE INDEX events_by_id ON unisono.events (id);

CREATE TABLE unisono.event_partitions (
    partition    text COLLATE "C" NOT NULL,
    committed_id bigint           NOT NULL,
    PRIMARY KEY (partition, committed_id)
);

-- One row, locked, read and advanced by every group, so ids are gap-free and become visible in order (ORD-02).
-- The rows present in events are pruned_to + 1 … committed_id. `log_id` tells one log from another.
CREATE TABLE unisono.head (
    one               boolean PRIMARY KEY CHECK (one),
    committed_id      bigint  NOT NULL CHECK (committed_id BETWEEN 0 AND 9007199254740991),
    status_updated_at bigint  NOT NULL,
    pruned_to         bigint  NOT NULL CHECK (pruned_to BETWEEN 0 AND committed_id),
    model_version     bigint,
    log_id            uuid    NOT NULL DEFAULT gen_random_uuid()
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

INSERT INTO unisono.head (one, committed_id, status_updated_at, pruned_to) VALUES (true, 0, 0, 0);

-- The newest snapshot of each partition and model version (DUR-07).
CREATE TABLE unisono.snapshots (
    partition     text COLLATE "C" NOT NULL,
    model_version bigint           NOT NULL,
    committed_id  bigint           NOT NULL,
    created_at    bigint           NOT NULL,
    state         bytea            NOT NULL,
    PRIMARY KEY (partition, model_version)
);

-- Models as nodes published them; the one in force is named by the head row (MODEL-02).
CREATE TABLE unisono.models (
    version      bigint      PRIMARY KEY,
    digest       text        NOT NULL,
    files        bytea       NOT NULL,  -- MessagePack: path → bytes
    published_at timestamptz NOT NULL DEFAULT now(),
    published_by text        NOT NULL
);

-- Every start of a node is a row of its own, so two runs of one name are never taken for each other.
CREATE SEQUENCE unisono.node_ids;

CREATE TABLE unisono.nodes (
    node_id    bigint      PRIMARY KEY,
    name       text        NOT NULL,
    knows      integer     NOT NULL,  -- the newest migration this node knows
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

-- The one connection of each client (CONN-05). An epoch is never given twice, and rises while a claim is held.
CREATE SEQUENCE unisono.epochs;

CREATE TABLE unisono.presence (
    client_id        text COLLATE "C" PRIMARY KEY,
    node_id          bigint NOT NULL,
    conn             bigint NOT NULL,
    epoch            bigint NOT NULL,
    previous_node_id bigint,
    previous_conn    bigint
);

CREATE INDEX presence_by_node ON unisono.presence (node_id);

-- Connections that a claim on another node has replaced, until their node has taken notice.
CREATE TABLE unisono.replacements (
    node_id bigint NOT NULL,
    conn    bigint NOT NULL,
    PRIMARY KEY (node_id, conn)
);
