"""What earlier cold starts say about the next one. Pure."""
