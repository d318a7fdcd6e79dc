"""Recovery of a lost database: copies, checks, restore."""
