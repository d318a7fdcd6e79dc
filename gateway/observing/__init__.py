"""What is counted, told and kept of requests."""
