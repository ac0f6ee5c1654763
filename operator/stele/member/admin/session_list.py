"""Copy sessions that are read from this member (`wire.admin`)."""

import msgspec

from stele.errors import Refused, Unavailable
from stele.member.copy.sessions import CopySessions, SourceSession
from stele.member.node import Node
from stele.wire.admin import SessionFacts, SessionList
from stele.wire.copy.jobs import SentSession, SentSessions

_decode = msgspec.json.Decoder(SentSessions).decode


async def session_list(node: Node, sessions: CopySessions) -> SessionList:
    """Return all sessions that are not closed, oldest first, with the bytes that the transfer process
    sent."""
    sent = await _sent(sessions)
    listed = sorted(sessions.known.items(), key=lambda item: item[1].began)
    return SessionList(tuple(_facts(node, name, each, sent) for name, each in listed))


async def _sent(sessions: CopySessions) -> dict[str, SentSession] | None:
    """Return sent bytes by session, without those never opened. None when the process does not answer."""
    try:
        answer = _decode(await sessions.transfer.call("GET", "/v1/sessions"))
    except (Refused, Unavailable, msgspec.MsgspecError):
        return None
    return {each.session: each for each in answer.sessions}


def _facts(
    node: Node, name: str, session: SourceSession, sent: dict[str, SentSession] | None
) -> SessionFacts:
    now, info = node.background.now(), session.info
    member = node.table.members.get(session.destination)
    tablets = () if info is None else info.tablets
    told = None if sent is None else sent.get(name, SentSession(name, 0, 0))
    return SessionFacts(
        session=name,
        source=node.settings.name,
        destination="" if member is None else member.name,
        engine=session.engine,
        tablets=len(tablets),
        bytes=sum(tablet.bytes for tablet in tablets),
        sent_bytes=None if told is None else told.sent_bytes,
        streams=0 if told is None else told.streams,
        age_seconds=round(now - session.began, 1),
        lease_left_seconds=round(max(0.0, session.until - now), 1),
        held_bytes=session.held_bytes,
        limit_bytes_per_second=session.bytes_per_second,
        ended=session.ended,
    )
