"""What happens to single replicas, from their record to their end."""
