"""Checks of `fnctl doctor`. Each returns a Check and raises nothing."""
