"""What `/metrics` shows, and what is counted for it."""
