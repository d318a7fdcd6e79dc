"""Constants and messages shared by a replica and its server. Standard library only, no I/O."""
