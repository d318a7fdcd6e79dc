"""The manager's side of single replicas: start, link, files, end."""
