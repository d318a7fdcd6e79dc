"""What replicas write: files that stay bounded, and whoever follows them."""
