"""What `fnctl doctor` looks at. Each check gives one Check and raises nothing."""
