"""Certificates of a cluster: makes its CA, signs leaves, reads both. The only user of `cryptography`."""
