"""Requests to /v1: their bodies, the functions of their models, and what they use."""
