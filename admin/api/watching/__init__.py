"""What of a server can be watched: news, logs, errors, times."""
