"""Other machines over SSH: logins, connections kept up, channels, files, checks."""
