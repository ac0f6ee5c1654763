"""Stele: a partitioned, replicated key-value store that a Kubernetes operator runs."""

__version__ = "0.1.0"
