"""`kubectl stele`: commands for clusters, members and plans.

Each command imports its dependencies when it runs, so `plan --offline` starts fast and works without any
Kubernetes library.
"""
