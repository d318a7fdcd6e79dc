"""Kubernetes clusters: `fnctl kubernetes`, and the options of hosts in one."""
