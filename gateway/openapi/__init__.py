"""OpenAPI documents of routes and of functions. Pure."""
