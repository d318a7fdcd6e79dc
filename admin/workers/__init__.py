"""Several gateway processes (workers) on one port, and the supervisor that runs them."""
