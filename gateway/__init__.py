"""The request side: HTTP, admission, dispatch to replicas, answers, metrics and traces."""
