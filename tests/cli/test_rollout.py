"""`rollout`: what it says, what it writes, and when it fails."""

from typing import Any

import pytest

from stele.cli import rollout
from stele.model import TabletCluster
from stele.model.rollout import Revision
from tests.cli.conftest import Run

SPEC: dict[str, Any] = {
    "members": 3,
    "storage": {"size": "1Gi"},
    "images": {"member": "stele:2"},
    "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
}


def condition(type_: str, status: str, reason: str, message: str) -> dict[str, str]:
    when = {"lastTransitionTime": "2026-11-22T00:00:00Z"}
    return {"type": type_, "status": status, "reason": reason, "message": message, **when}


def cluster(
    updated: int,
    ready: bool,
    *conditions: dict[str, str],
    seen: int = 2,
    asked: str = "",
    told: str = "",
    image: str = "",
    **spec: Any,
) -> TabletCluster:
    """A cluster of which the operator saw generation `seen` of 2, and the restart `told` of `asked`."""
    all_conditions = [condition("Ready", str(ready), "AsDesired", ""), *conditions]
    status = {
        "observedGeneration": seen,
        "members": {"desired": 3, "updated": updated},
        "conditions": all_conditions,
        "restartedAt": told,
        "memberImage": image,
    }
    annotations = {"stele.dev/restartedAt": asked} if asked else {}
    metadata = {"name": "demo", "generation": 2, "annotations": annotations}
    return TabletCluster.model_validate({"metadata": metadata, "spec": SPEC | spec, "status": status})


def with_status(cluster: TabletCluster, **fields: Any) -> TabletCluster:
    """The same with other fields of the status."""
    whole = cluster.to_dict()
    return TabletCluster.model_validate(whole | {"status": whole["status"] | fields})


class Desk:
    """As much of a console as the commands use; each look sees the next cluster."""

    def __init__(self, *clusters: TabletCluster, revisions: list[Revision] | None = None) -> None:
        self._clusters, self._revisions = list(clusters), revisions or []
        self.written: list[Any] = []

    async def cluster(self, name: str) -> TabletCluster:
        return self._clusters.pop(0) if len(self._clusters) > 1 else self._clusters[0]

    async def change_cluster(self, name: str, spec: dict[str, Any]) -> None:
        self.written.append(spec)

    async def annotate_cluster(self, name: str, annotations: dict[str, str]) -> None:
        self.written.append(annotations)

    async def revisions(self, cluster: TabletCluster) -> list[Revision]:
        return self._revisions


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Any:
    import asyncio

    monkeypatch.setattr(rollout, "POLL_SECONDS", 0.001)

    def use(*clusters: TabletCluster, revisions: list[Revision] | None = None) -> Desk:
        made = Desk(*(clusters or (cluster(3, True),)), revisions=revisions)
        monkeypatch.setattr(rollout.Where, "ask", lambda _self, question: asyncio.run(question(made)))
        return made

    return use


def test_status_waits_until_all_members_are_updated(run: Run, desk: Any) -> None:
    progress = condition("Progressing", "True", "RollingUpdate", "demo-1 restarts")
    desk(cluster(3, True, seen=1), cluster(1, False, progress), cluster(3, False, progress), cluster(3, True))
    ran = run("rollout", "status", "demo")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "demo: the operator has not seen the latest spec yet",
        "demo: 1 of 3 members are as the spec says; demo-1 restarts",
        "demo: 3 of 3 members are as the spec says; demo-1 restarts",
        "demo: 3 of 3 members are as the spec says",
    ]


def test_status_after_a_restart_waits_for_the_operator_to_see_it(run: Run, desk: Any) -> None:
    """An annotation leaves the generation as it is: the status of before says that all is done."""
    desk(
        cluster(3, True, asked="noon"),
        cluster(3, True, asked="noon", told="eleven", image="stele:2"),
        cluster(0, False, asked="noon", told="noon", image="stele:2"),
        cluster(3, True, asked="noon", told="noon", image="stele:2"),
    )
    assert run("rollout", "status", "demo").out.splitlines() == [
        "demo: the operator that leads is too old to report stele.dev/restartedAt: upgrade it",
        "demo: the operator has not seen stele.dev/restartedAt noon yet",
        "demo: 0 of 3 members are as the spec says",
        "demo: 3 of 3 members are as the spec says (image stele:2)",
    ]
    desk(cluster(3, True, told="noon"), cluster(3, True))
    first = run("rollout", "status", "demo").out.splitlines()[0]
    assert first == "demo: the operator has not seen stele.dev/restartedAt removed yet"


def test_status_after_an_upgrade_waits_for_an_operator_that_wants_the_image(run: Run, desk: Any) -> None:
    """What the operator of before says is about what was installed before."""
    own: dict[str, Any] = {"images": {}}
    failed = condition("Stalled", "True", "UpdateFailed", "demo-2 does not come back")
    desk(
        cluster(3, True, **own),
        cluster(2, False, failed, image="stele:1", **own),
        cluster(3, True, image="stele:1", **own),
        cluster(1, False, image="stele:2", **own),
        cluster(3, True, image="stele:2", **own),
    )
    assert run("rollout", "status", "demo", "--image", "stele:2").out.splitlines() == [
        "demo: the operator wants members of an image that it does not name, not of stele:2 yet",
        "demo: the operator wants members of stele:1, not of stele:2 yet",
        "demo: 1 of 3 members are as the spec says",
        "demo: 3 of 3 members are as the spec says (image stele:2)",
    ]


def test_status_does_not_wait_for_an_image_that_the_spec_excludes(run: Run, desk: Any) -> None:
    desk(cluster(3, True, image="stele:2"))
    ran = run("rollout", "status", "demo", "--image", "stele:3")
    assert (ran.code, ran.out) == (2, "")
    assert "--image is stele:3, but spec.images.member of demo is stele:2" in ran.err
    assert run("rollout", "status", "demo", "--image", "stele:2").code == 0


@pytest.mark.parametrize(
    ("spec", "held"),
    [
        (
            {"updateStrategy": {"type": "OnDelete"}},
            "spec.updateStrategy.type is OnDelete: delete their pods one by one",
        ),
        (
            {"updateStrategy": {"paused": True}},
            "spec.updateStrategy.paused is true: kubectl stele rollout resume",
        ),
        ({"migration": {"paused": True}}, "spec.migration.paused is true"),
    ],
)
def test_status_ends_when_nothing_is_restarted_by_itself(
    run: Run, desk: Any, spec: dict[str, Any], held: str
) -> None:
    """What was under way is completed first."""
    why = f"not as the spec says: pod demo-0 (revision); {held}"
    desk(
        cluster(1, False, condition("Progressing", "True", "RollingUpdate", "demo-1 restarts"), **spec),
        cluster(2, False, condition("Progressing", "False", "MembersOutdated", why), **spec),
    )
    ran = run("rollout", "status", "demo", "--timeout", "5")
    assert (ran.code, ran.out.splitlines()[-1]) == (1, f"demo: 2 of 3 members are as the spec says; {why}")
    assert f"HELD_BACK: demo: no member is restarted by itself: {held}" in ran.err


def test_status_counts_no_members_below_the_partition(run: Run, desk: Any) -> None:
    """That of a new member with a low index is up to date, so the number of them does not tell."""
    left = "spec.updateStrategy.partition is 2: members below it keep their pods"
    own: dict[str, Any] = {"updateStrategy": {"partition": 2}}
    old = "not as the spec says: pod demo-1 (revision)"
    outdated = [
        {"conditions": [condition("Ready", "False", reason, f"{old}; {text}")]}
        for reason, text in (
            ("MembersOutdated", "they are replaced by themselves"),
            ("UnderReplicated", left),
            ("MembersOutdated", left),
        )
    ]
    desk(*(with_status(cluster(1, False, **own), **each) for each in outdated))
    assert run("rollout", "status", "demo", "--timeout", "5").out.splitlines() == [
        "demo: 1 of 3 members are as the spec says",
        f"demo: 1 of 3 members are as the spec says; {left}",
    ]


def test_status_ends_when_the_spec_cannot_be_read(run: Run, desk: Any) -> None:
    desk(cluster(3, False, condition("Stalled", "True", "InvalidResource", "spec.members must be a number")))
    ran = run("rollout", "status", "demo")
    assert (ran.code, "demo: spec.members must be a number" in ran.err) == (1, True)


def test_status_ends_when_a_member_does_not_come_back(run: Run, desk: Any) -> None:
    desk(cluster(1, False, condition("Stalled", "True", "UpdateFailed", "demo-2 does not come back")))
    ran = run("rollout", "status", "demo")
    assert (ran.code, "UPDATE_FAILED: demo: demo-2 does not come back" in ran.err) == (1, True)


def test_status_waits_no_longer_than_told(run: Run, desk: Any) -> None:
    desk(cluster(1, False))
    ran = run("rollout", "status", "demo", "--timeout", "0.01")
    assert (ran.code, "TIMED_OUT" in ran.err) == (1, True)
    assert run("rollout", "status", "demo", "--no-watch").code == 0


@pytest.mark.parametrize(("command", "paused"), [("pause", True), ("resume", False)])
def test_pause_and_resume(run: Run, desk: Any, command: str, paused: bool) -> None:
    made = desk()
    assert run("rollout", command, "demo").code == 0
    assert made.written == [{"updateStrategy": {"paused": paused}}]


def test_restart_changes_the_annotation(run: Run, desk: Any) -> None:
    made = desk()
    assert run("rollout", "restart", "demo").code == 0
    assert [list(each) for each in made.written] == [["stele.dev/restartedAt"]]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, "members are restarted one after the other"),
        (
            {"updateStrategy": {"type": "OnDelete"}},
            "no member is restarted by itself: "
            "spec.updateStrategy.type is OnDelete: delete their pods one by one",
        ),
        (
            {"updateStrategy": {"paused": True}},
            "no member is restarted by itself: "
            "spec.updateStrategy.paused is true: kubectl stele rollout resume",
        ),
        (
            {"state": "NoMigration"},
            "no member is restarted by itself: the cluster state NoMigration allows no migration",
        ),
        (
            {"updateStrategy": {"partition": 2}},
            "members are restarted one after the other; "
            "spec.updateStrategy.partition is 2: members below it keep their pods",
        ),
    ],
)
def test_restart_says_whether_members_are_restarted(
    run: Run, desk: Any, spec: dict[str, Any], told: str
) -> None:
    made = desk(cluster(3, True, **spec))
    assert run("rollout", "restart", "demo").out.strip() == f"demo: {told}"
    assert len(made.written) == 1


def earlier(number: int, **template: Any) -> Revision:
    return Revision(number, "2026-11-22T00:00:00Z", template)


def test_undo_restores_the_fields_of_the_revision_before_and_removes_others(run: Run, desk: Any) -> None:
    made = desk(
        revisions=[earlier(3, images={"member": "stele:1"}, resources={"requests": {"cpu": "1"}}), earlier(4)]
    )
    ran = run("rollout", "undo", "demo")
    assert (ran.code, "revision 3" in ran.out) == (0, True)
    (patch,) = made.written
    assert patch["images"] == {"member": "stele:1"}
    assert patch["resources"] == {"limits": None}
    assert "members" not in patch


def test_undo_restores_no_image_that_the_volumes_are_too_new_for(run: Run, desk: Any) -> None:
    present = cluster(3, True)
    newer = present.model_copy(update={"status": present.status.model_copy(update={"features": 2})})
    old = Revision(3, "", {"images": {"member": "stele:1"}}, features=1)
    made = desk(newer, revisions=[old, earlier(4)])
    ran = run("rollout", "undo", "demo")
    assert (ran.code, made.written) == (1, [])
    assert "FEATURES_ROSE: the cluster uses format 2 since then, and revision 3 used 1" in ran.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [([], "demo has no earlier revision"), (["--to-revision", "9"], "demo has no revision 9")],
)
def test_undo_says_what_there_is(run: Run, desk: Any, arguments: list[str], text: str) -> None:
    made = desk(revisions=[earlier(4)])
    ran = run("rollout", "undo", "demo", *arguments)
    assert (ran.code, made.written) == (2, [])
    assert text in ran.err
    assert "there are: 4" in ran.err


def test_history_lists_revisions(run: Run, desk: Any) -> None:
    desk(revisions=[earlier(3, images={"member": "stele:1"}), earlier(4)])
    assert [line.split()[0] for line in run("rollout", "history", "demo").out.splitlines()] == [
        "REVISION",
        "3",
        "4",
    ]
