"""Copying tablets: reading checkpoints, the copy function, and the jobs that run it."""
