"""Drivers, which start and stop replicas: processes, containers, and a scripted fake."""
