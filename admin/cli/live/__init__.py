"""What a server tells as it happens: read, kept as a picture, gone on with after a break."""
