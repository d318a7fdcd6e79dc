"""Single replicas: start and end, control link, run folder, logs, records."""
