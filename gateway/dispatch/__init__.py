"""Which waiting request goes to which replica. Pure: events and `now` in, commands out."""
