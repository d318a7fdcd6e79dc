"""What exists: nouns, errors, the durable store, bundles."""
