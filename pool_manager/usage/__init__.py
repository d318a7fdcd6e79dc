"""What replicas have of devices: seconds waking, idle and busy, measured and kept."""
