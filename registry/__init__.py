"""Functions, revisions and bundles: their data model, errors, manifest and durable store."""
