"""What must hold while containers, their engine and the server die."""
