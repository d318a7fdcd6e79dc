"""Operator side of the server: process wiring, the admin API and the command line `fnctl`."""
