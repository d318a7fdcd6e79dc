"""What runs: replicas, devices, scaling."""
