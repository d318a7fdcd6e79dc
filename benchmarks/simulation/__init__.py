"""Days that are drawn around the decision cores, and eviction rules held against each other."""
