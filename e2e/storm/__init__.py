"""A storm of faults over a cluster of one's own, while clients check every answer."""
