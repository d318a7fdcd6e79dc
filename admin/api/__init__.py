"""Handlers of the admin API below `/admin/v1`."""
