"""What clients get back: whole answers, and the receipt of how they were made."""
