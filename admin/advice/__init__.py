"""What another `idle_s` would have cost and saved, by what was recorded."""
