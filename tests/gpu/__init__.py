"""Checks on a machine with an NVIDIA GPU, `make gpu`: no network, eight minutes at most."""
