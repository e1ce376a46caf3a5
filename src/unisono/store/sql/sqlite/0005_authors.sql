-- Who submitted an event beyond its client_id: canonical JSON with `user_id` and `claims`, empty where the token had
-- neither. Events of an older version have none.
ALTER TABLE events ADD COLUMN author TEXT NOT NULL DEFAULT '';
