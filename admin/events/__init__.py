"""What happens, told to whoever watches."""
