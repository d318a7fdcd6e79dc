"""Plain calls, read without aiohttp."""
