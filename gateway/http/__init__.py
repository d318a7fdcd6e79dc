"""Routes, bodies and answers of the gateway."""
