-- Which log this is, and which past of it (DUR-08). A log made before has one from now on.
ALTER TABLE head ADD COLUMN log_id TEXT NOT NULL DEFAULT '';
ALTER TABLE head ADD COLUMN log_epoch INTEGER NOT NULL DEFAULT 1;

UPDATE head SET log_id = lower(hex(randomblob(16)));

-- The digest of the model that folded a snapshot (DUR-07). Without a model it is empty, which is right for those made
-- before; of the others nobody knows which content of their model version made them, and none of them is used.
ALTER TABLE snapshots ADD COLUMN model_digest TEXT NOT NULL DEFAULT '';
