"""Recovery of a lost or damaged database: copies, checks, restore."""
