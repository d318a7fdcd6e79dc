"""The words both sides of a replica agree on. Standard library only, no I/O."""
