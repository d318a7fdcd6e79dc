"""fnctl, the command line. One verb per file in `verbs`; what they share is beside this file."""
