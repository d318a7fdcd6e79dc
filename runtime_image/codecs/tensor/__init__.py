"""One input between the wire and numpy: its checks and its JSON elements."""
