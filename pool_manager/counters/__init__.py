"""What the manager's decisions come to: counts since the start, and how pools are supplied now."""
