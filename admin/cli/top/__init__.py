"""The screen of `fnctl top`: layout and keys (pure), and a thin shell around a terminal."""
