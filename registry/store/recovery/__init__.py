"""What is done so that a lost database costs little: copies, checks, ways back."""
