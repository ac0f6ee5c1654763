"""What `up` prints of changes."""

import io

from stele.adapters.kubernetes.api import CLUSTERS, EVENTS, PODS, REBALANCES
from stele.playground.files import Object
from stele.playground.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def cluster(done: int, waiting: int) -> Object:
    status = {
        "phase": "Rebalancing" if waiting else "Running",
        "members": {"ready": 4},
        "partitions": {"total": 8, "safe": 7},
        "migrations": {"done": done, "waiting": waiting},
    }
    spec = {"members": 4, "storage": {"size": "1Gi"}}
    return {"metadata": {"name": "demo", "namespace": "playground"}, "spec": spec, "status": status}


def printed(out: io.StringIO) -> str:
    progress = Progress(out, lambda: 0.0)
    progress.changed(PODS, {"metadata": {"name": "demo-0"}}, False)
    progress.changed(CLUSTERS, cluster(1, 2), False)
    progress.changed(CLUSTERS, cluster(1, 2), False)
    progress.changed(EVENTS, {"reason": "MemberJoined", "message": "demo-3 joined"}, False)
    progress.changed(CLUSTERS, cluster(0, 0), False)
    return out.getvalue()


def test_what_copies_is_said_while_data_moves() -> None:
    out = io.StringIO()
    progress = Progress(out, lambda: 0.0)
    for engine in ("Spark", None):
        progress.changed(REBALANCES, {"metadata": {"name": "p"}, "status": {"engine": engine}}, False)
        progress.changed(CLUSTERS, cluster(1, 2), False)
    assert ["moved 1/3 by Spark [" in line for line in out.getvalue().splitlines()] == [True, False]


def test_a_file_gets_a_line_for_each_change() -> None:
    lines = [line.split("  ", 1)[1] for line in printed(io.StringIO()).splitlines()]
    assert lines == [
        "Rebalancing: members 4/4, safe 7/8, moved 1/3 [####........]",
        "MemberJoined: demo-3 joined",
        "Running: members 4/4, safe 7/8",
    ]


def test_on_a_terminal_the_state_stays_the_last_line() -> None:
    state = "Rebalancing: members 4/4, safe 7/8, moved 1/3 [####........]"
    clear = "\r\x1b[K"
    text = printed(Terminal())
    assert text.startswith(f"{clear}{state}{clear}")
    assert text.endswith(f"MemberJoined: demo-3 joined\n{state}{clear}Running: members 4/4, safe 7/8")
