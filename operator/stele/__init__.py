"""Stele: a partitioned, replicated key-value store that a Kubernetes operator runs."""

import os

__version__ = "0.1.0"

REVISION = os.environ.get("STELE_REVISION", "")
"""Commit of the image that this runs in; empty where the build was told none."""
