"""Advice on `idle_s`: what other values would have cost and saved, from recorded history."""
