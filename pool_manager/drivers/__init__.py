"""Drivers, which start and stop replicas: processes and containers."""
