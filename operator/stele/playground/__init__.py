"""Application: a whole cluster on one machine without Kubernetes (docs/operating/playground.md)."""
