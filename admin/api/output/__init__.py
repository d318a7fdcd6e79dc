"""What functions wrote, and where they failed: logs, errors."""
