"""What runs in the process that owns store, replicas and the gateway processes."""
