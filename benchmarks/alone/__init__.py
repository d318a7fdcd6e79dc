"""One replica without a gateway: what it serves, and who calls it."""
