"""Sessions with the other members of the dictionary, and which part of this member takes what they send."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stele.core.control.commands import MemberInfo
from stele.core.control.member_settings import MemberSettings
from stele.core.formats import FormatRange
from stele.member import limits
from stele.member.background import Background
from stele.member.replication.links import Inbound, InboundConnections, Link
from stele.member.replication.member_tls import MemberTls
from stele.member.replication.replicator import Replicator
from stele.member.replication.request import Request
from stele.member.replication.tablet_store import TabletStore
from stele.member.serving.router import RequestRouter
from stele.member.settings import Settings
from stele.member.tracking.local_caches import LocalCaches
from stele.member.tracking.near_caches import NearCaches
from stele.wire import peer
from stele.wire.storage.volume import Instance

OnAnswer = Callable[[Link, Any], None]
OnQuestion = Callable[[Inbound, Any], None]


@dataclass(eq=False)
class Peers:
    """`links` are the sessions that this member began, by index; `inbound` those that others did.

    `spoken` are the formats that this build speaks.
    """

    _settings: Settings
    spoken: FormatRange
    _instance: Instance
    tls: MemberTls
    links: dict[int, Link]
    _tablets: TabletStore
    _replicator: Replicator
    _router: RequestRouter
    _near_caches: NearCaches
    _local_caches: LocalCaches
    _background: Background
    _on_answer: Mapping[type[peer.Message], OnAnswer]
    _on_question: Mapping[type[peer.Message], OnQuestion]

    def __post_init__(self) -> None:
        self.inbound = InboundConnections(self, self.take_message)

    @property
    def cluster(self) -> str:
        return self._settings.cluster

    @property
    def uuid(self) -> str:
        return self._instance.uuid

    @property
    def incarnation(self) -> int:
        return self._instance.incarnation

    @property
    def me(self) -> int:
        return self._tablets.me

    @property
    def formats(self) -> FormatRange:
        return FormatRange(max(self.spoken.least, self._tablets.table.features), self.spoken.most)

    def uuid_of(self, member: int) -> str | None:
        info = self._tablets.table.members.get(member)
        return None if info is None else info.uuid

    def name_of(self, member: int) -> str:
        info = self._tablets.table.members.get(member)
        return "" if info is None else info.name

    def connect(self) -> None:
        """One link per other member of the dictionary, to its present address."""
        self._local_caches.list_changed()
        me, members = self.me, self._tablets.table.members
        wanted = {i: info for i, info in members.items() if i != me and me >= 0}
        for index, link in list(self.links.items()):
            info = wanted.get(index)
            if info is None or (info.uuid, info.address) != (link.uuid, link.host):
                self.links.pop(index)
                self._background.spawn(link.stop())
        for index, info in wanted.items():
            if index not in self.links:
                self.links[index] = self._link(info)

    def require(self, features: int) -> None:
        """End the sessions with members that lack the cluster's features."""
        self.inbound.require(features)
        for link in self.links.values():
            link.require(features)

    @property
    def plain_links(self) -> int:
        """How many links have no TLS yet where the level dials with it, also those that are not connected:
        they may have failed because of it."""
        return sum(not link.encrypted for link in self.links.values()) if self.tls.level.dials_tls else 0

    async def adopt_tls(self, sent: MemberSettings | None) -> None:
        """Use the level of TLS that was sent; connections that it does not allow end."""
        await self.tls.adopt(sent)
        if not self.tls.level.listens_plain:
            self.inbound.require_tls()

    async def renew_links(self) -> None:
        """Renew links without TLS, or with a CA that is no longer trusted, one after the other."""
        while True:
            self.inbound.end_outdated()
            for link in self.links.values():
                link.end_outdated()
            pause = limits.RENEW_LOOK_SECONDS
            due = next((each for each in self.links.values() if each.due), None)
            if due is not None:
                most = min(limits.RENEW_PAUSE_SECONDS, limits.RENEW_ALL_SECONDS / len(self.links))
                pause = 0.0 if due.plain else most
                await due.renew()
            await asyncio.sleep(pause)

    def _link(self, info: MemberInfo) -> Link:
        return Link(info, self._settings.peer_port, self, self)

    async def close(self, reason: str) -> None:
        self.inbound.close_all(reason)
        for link in self.links.values():
            await link.stop()

    # -- of this member's links

    def link_ready(self, link: Link) -> None:
        self._replicator.session_began(link)
        self._near_caches.session_began(link)
        self._local_caches.session_began(link)
        self._router.drain_all()

    def link_message(self, link: Link, message: peer.Message) -> None:
        take = self._on_answer.get(type(message))
        if take is not None:
            take(link, message)

    def link_drained(self, link: Link) -> None:
        self._replicator.send_behind(link)

    def link_resumed(self, link: Link) -> None:
        self._replicator.send_behind(link)
        self._router.drain_all()

    def link_lost(self, link: Link, requests: list[Request]) -> None:
        self._near_caches.session_ended(link.member)
        self._local_caches.session_ended(link.member)
        self._router.lost(requests)

    # -- of connections that others made

    def take_message(self, sender: Inbound, message: peer.Message) -> None:
        take = self._on_question.get(type(message))
        if take is None:
            sender.close(f"garbage: {type(message).__name__} is no question", invalid=True)
        else:
            take(sender, message)
