"""Types of the admin API's bodies, as its OpenAPI document shows them.

Times ending in `_s` are in seconds, points in time in Unix seconds; those ending in `_ms` are in
milliseconds.
"""
