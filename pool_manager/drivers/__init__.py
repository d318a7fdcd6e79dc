"""What starts and stops replicas: processes, and a scripted fake."""
