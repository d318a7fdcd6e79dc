"""Connections to the API server of a Kubernetes cluster."""
