"""Who may call what: one admission for every way in."""
