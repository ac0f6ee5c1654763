"""What the applications need of the outside world, as Protocols.

Adapters implement them, each with an in-memory fake.
"""
