"""What images are made from: exact versions with hashes, and what can be said about them.

`python -m e2e.supply --help` lists the commands.
"""
