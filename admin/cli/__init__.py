"""fnctl, the command line: verbs in `verbs`, and what they share."""
