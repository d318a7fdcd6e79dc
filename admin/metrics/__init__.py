"""What `/metrics` shows of replicas, devices and the server itself."""
