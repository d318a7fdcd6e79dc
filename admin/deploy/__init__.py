"""Deploys, rollbacks, scaling and removal of functions."""
