"""Checks on a machine with an NVIDIA GPU (`make gpu`): without a network, at most eight minutes."""
