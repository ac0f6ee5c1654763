"""The failure detector for cases as text: what is shown of one pod, and what answers."""

from typing import Any

import msgspec

from stele.core.control.commands import ExchangeReply
from stele.core.control.failure_detector import MemberLiveness, MemberObject, PodFacts, Timing

TIMING = Timing(heartbeat=1.0, lease=3.0, grace=30.0)


class LivenessMachine:
    """One member. The first argument is the second of the master's clock, `since` that of the node's."""

    def __init__(self) -> None:
        self._liveness = MemberLiveness(0, 0.0)
        self._now = 0.0

    def parts(self) -> list[Any]:
        return []

    def state(self) -> dict[str, str]:
        liveness, now = self._liveness, self._now
        facts = {
            "doubtful": liveness.end_unconfirmed,
            "ended": liveness.ended,
            "known dead": liveness.known_dead,
            "reachable": liveness.reachable(now, TIMING),
            "gone": liveness.gone(now, TIMING),
            "in grace": liveness.in_grace(now, TIMING),
        }
        replaced = ", ".join(liveness.replaced) or "none"
        return {
            "is": ", ".join(name for name, holds in facts.items() if holds) or "unknown",
            "may run on": replaced,
        }

    def _evaluate(self, now: float) -> None:
        self._now = now
        self._liveness.evaluate(now)

    def living(self) -> None:
        """Its container started in second 100 of its node's clock, and it answers."""
        self.shows(0, "a", since=100)
        self.answers(1)

    def shows(self, now: float, process: str, ended: str = "", uid: str = "pod", since: float = 0.0) -> None:
        pod = PodFacts(uid, "10.0.0.1", process, bool(ended), since_seconds=since)
        self._liveness.observe_pod(MemberObject(0, "demo-0", pod=pod), now)
        self._evaluate(now)

    def removed(self, now: float, since: float, new: str = "") -> None:
        """Its pod's object is gone, and perhaps another has its name."""
        pod = PodFacts(new, "", "", False) if new else None
        former = PodFacts("pod", "10.0.0.1", "a", False, since_seconds=since)
        self._liveness.observe_pod(MemberObject(0, "demo-0", pod=pod, former_pod=former), now)
        self._evaluate(now)

    def answers(self, sent: float, incarnation: int = 1, started: float = 100.7, **where: str | None) -> None:
        """Answer a request; `pod` and `boot` are where it says that it runs."""
        reply = ExchangeReply("OK", "", "uuid", "cluster", incarnation, 1, 0, 0, started_seconds=started)
        pod, boot = where.get("pod", "pod") or "", where.get("boot", "boot") or ""
        self._liveness.on_report(msgspec.structs.replace(reply, pod_uid=pod, boot_id=boot), sent)
        self._evaluate(sent)

    def fails(self, sent: float) -> None:
        self._liveness.failed_seconds = sent
        self._evaluate(sent)

    def passes(self, now: float) -> None:
        """Let time pass; a loss is noted."""
        self._evaluate(now)
        self._liveness.note_loss(now, TIMING)
