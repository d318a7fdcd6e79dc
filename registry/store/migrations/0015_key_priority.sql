-- The highest priority that the calls of a key may have. Any caller could claim every priority so far.
UPDATE keys SET record = json_set(record, '$.priority', 'high');
