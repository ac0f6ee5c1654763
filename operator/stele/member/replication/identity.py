"""What sessions with other members need to know of this one."""

from typing import Protocol

from stele.core.formats import FormatRange
from stele.member.replication.member_tls import MemberTls


class Identity(Protocol):
    """This member's identity and the members that it knows, from the table."""

    @property
    def cluster(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    @property
    def me(self) -> int: ...

    @property
    def incarnation(self) -> int:
        """How often processes of this member have started on its volume."""
        ...

    @property
    def formats(self) -> FormatRange:
        """What this member speaks with others: nothing below the cluster's features."""
        ...

    @property
    def tls(self) -> MemberTls: ...

    def uuid_of(self, member: int) -> str | None: ...

    def name_of(self, member: int) -> str:
        """Return a member's name; empty when it is unknown."""
        ...
