"""Build of the image that replicas run in, through the Docker API."""
