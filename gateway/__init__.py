"""What is asked: HTTP in, answers out."""
