"""Golden samples: what is asked, how answers are read, learnt and compared. Pure."""
