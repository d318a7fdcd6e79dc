"""One replica without a gateway: the models it serves, and its client."""
