"""Parks: servers that sleep in the memory of their host instead of being stopped."""
