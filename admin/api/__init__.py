"""The admin API below /admin/v1."""
