"""Counters of the gateway, the ledger of accepted requests, and the page `/metrics`."""
