"""Golden samples: what is asked, and how answers are read, learnt and compared."""
