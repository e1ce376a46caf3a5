-- Who submitted an event beyond its client_id: canonical JSON with `user_id` and `claims`, empty where the token had
-- neither. Only adds: what nodes that do not know it commit has no author.
SET LOCAL lock_timeout = '2s';

ALTER TABLE unisono.events ADD COLUMN author text COLLATE "C" NOT NULL DEFAULT '';

-- As for texts: what PostgreSQL gathers to plan by would be out of reach of an erasure.
ALTER TABLE unisono.events ALTER author SET STATISTICS 0;
