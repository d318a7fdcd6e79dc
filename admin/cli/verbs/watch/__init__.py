"""The verbs that go on showing a server until they are told to stop, one per file."""
