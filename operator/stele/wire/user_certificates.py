"""The file that says whose the certificates of clients are.

It is beside that of users (`wire.users`), which versions without certificates read too, and refuse with a
field that they do not know. A member that does not read it lets nobody in by a certificate. It is JSON:

    {"format":1,"certificates":{"shop":"uri:spiffe://example.com/shop","till":"cn:till"}}
"""

from collections.abc import Iterable, Mapping

import msgspec

from stele.errors import Corrupt

FORMAT = 1
CERTIFICATES_KEY = "certificates"
"""Name of the file, beside that of users."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    certificates: dict[str, str]


_decode = msgspec.json.Decoder(_File).decode
_encode = msgspec.json.Encoder().encode


def encode_certificates(certificates: Iterable[tuple[str, str]]) -> bytes:
    """Return the content of the file, of pairs of a user and a certificate; nothing when there are none."""
    ordered = dict(sorted(certificates))
    return bytes(_encode(_File(FORMAT, ordered))) if ordered else b""


def decode_certificates(data: bytes) -> Mapping[str, str]:
    """Return certificates by user. Raises Corrupt; what users and certificates may be is not looked at."""
    if not data:
        return {}
    try:
        file = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"file of certificates: {error}") from None
    if file.format != FORMAT:
        problem = f"format is {file.format}; this version of Stele reads {FORMAT}"
        raise Corrupt(f"file of certificates: {problem}; use the version that wrote it", "UNKNOWN_FORMAT")
    return file.certificates
