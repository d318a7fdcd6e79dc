-- Whether callers without a key are let in, and the public hosts and trusted proxies (a JSON list)
-- that were set when the operator opened the server. Keys have closed a server so far.
ALTER TABLE store ADD COLUMN openness TEXT NOT NULL DEFAULT 'local';
ALTER TABLE store ADD COLUMN exposure TEXT NOT NULL DEFAULT '[]';
UPDATE store SET openness = 'closed' WHERE EXISTS (SELECT 1 FROM keys);
