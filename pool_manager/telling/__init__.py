"""What others are told of pools, replicas and devices."""
