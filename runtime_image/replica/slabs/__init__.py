"""Bodies in shared memory, from the replica's side."""
