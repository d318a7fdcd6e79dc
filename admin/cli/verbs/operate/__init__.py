"""The verbs that change how a deployed function is served, one per file."""
