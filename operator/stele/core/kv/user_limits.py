"""Limits of a cluster's users."""

import re

CONNECTIONS_MAX = 1_000_000
BYTES_PER_SECOND_MIN, BYTES_PER_SECOND_MAX = 1024, 1 << 40
KEYSPACES_MAX = 64
NAME_CHARACTERS_MAX = 63
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARACTERS_MAX - 1}}}", re.ASCII)
