"""`kubectl stele`: what people and scripts ask of clusters, members and plans.

Each command imports what it needs when it runs: `plan --offline` works where no Kubernetes library is
installed, and starts fast.
"""
