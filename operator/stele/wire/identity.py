"""What a member says of the certificate that it uses, so that the operator knows which Secret it has read."""

import hashlib


def identity_digest(certificate: bytes, trusted: bytes) -> str:
    """Return the digest of a certificate with the CAs that are trusted beside it, both as their files are."""
    return hashlib.sha256(b"%d %s%s" % (len(certificate), certificate, trusted)).hexdigest()
