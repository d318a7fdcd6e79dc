"""What happens to a batch before and after its run: decoding, joining, answering. No threads."""
