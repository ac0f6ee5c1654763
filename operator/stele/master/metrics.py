"""Measurements of the master itself, beside the gauges of clusters in `health`."""

from prometheus_client import Histogram

DECISION = Histogram(
    "stele_decision_seconds",
    "Processor-bound time of one decision about one cluster.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    registry=None,
)
"""Nothing else of any cluster happens meanwhile: this is how late a heartbeat or a step may come."""
