"""Parks: a server whose engine is put to sleep and woken."""
