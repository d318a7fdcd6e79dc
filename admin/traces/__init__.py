"""Sends traces to a collector: the only place that knows OpenTelemetry, an optional extra."""
