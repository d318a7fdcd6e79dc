"""What runs in a gateway process of its own."""
