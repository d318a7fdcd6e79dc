"""What fngate is held against, always in the same run: the engine alone, and other servers."""
