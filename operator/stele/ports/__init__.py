"""Protocols that the applications use to reach the outside world.

Adapters implement them, each with an in-memory fake.
"""
