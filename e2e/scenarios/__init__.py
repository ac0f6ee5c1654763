"""Runs of the whole system that tests call."""
