"""Command line `fnctl`: the verbs in `verbs`, and the code that they share."""
