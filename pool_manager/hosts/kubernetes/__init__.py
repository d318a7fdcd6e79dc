"""A Kubernetes cluster as an engine of hosts: its nodes are hosts, replicas are Pods."""
