"""Observability of requests: access log, traces, and recent errors."""
