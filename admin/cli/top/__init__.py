"""Screen of `fnctl top`: layout and keys (pure), and a thin layer for the terminal."""
