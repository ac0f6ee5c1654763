"""How long names, texts and lists of a member's reply may be: no member fills the operator's memory."""

from typing import Annotated

import msgspec

from stele.core.table.ids import PARTITIONS_MAX

NAME_LENGTH_MAX = 512
"""Characters of ids, names, UIDs, codes and addresses."""

TEXT_LENGTH_MAX = 64 * 1024
"""Characters of what a member says for people."""

LISTED = msgspec.Meta(max_length=PARTITIONS_MAX)
"""Of lists: no member has more of anything than one for each partition."""

Name = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)]
Numbers = Annotated[tuple[int, ...], LISTED]
