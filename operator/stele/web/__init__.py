"""The page: a cluster on one screen, read only, for the operator and the playground to serve."""
