"""What functions wrote and where they failed: logs, event streams of them, errors."""
