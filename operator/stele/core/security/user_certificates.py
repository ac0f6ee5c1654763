"""Which certificates log clients in: the text that stands for those with one URI, or one common name."""

import re

URI_CHARACTERS_MAX = 512
COMMON_NAME_CHARACTERS_MAX = 64
"""Of the subject of a certificate, as X.509 has it."""

URI, COMMON_NAME = "uri", "cn"
"""What a text begins with, before a colon."""

OWN_SCHEME = "stele:"
"""Beginning of the URIs of the parts of clusters, which are nobody's user."""

_URI_FORM = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+", re.ASCII)


def certificate_of(kind: str, value: str) -> str:
    """Return the text that stands for certificates with this URI, or this CN."""
    return f"{kind}:{value}"


def certificate_fault(text: str) -> str:
    """Return what is wrong with the text of a certificate, or nothing."""
    kind, _, value = text.partition(":")
    if kind == URI and len(value) <= URI_CHARACTERS_MAX and _URI_FORM.fullmatch(value):
        if value.lower().startswith(OWN_SCHEME):
            return f"a URI that begins with {OWN_SCHEME} is of a part of a cluster; expected another one"
        return ""
    if kind == COMMON_NAME and 0 < len(value) <= COMMON_NAME_CHARACTERS_MAX and value.isprintable():
        return ""
    uri = f"{URI}: and a URI of at most {URI_CHARACTERS_MAX} characters"
    name = f"{COMMON_NAME}: and 1 to {COMMON_NAME_CHARACTERS_MAX} characters that can be printed"
    return f"{text[:80]!r}; expected {uri}, or {name}"
