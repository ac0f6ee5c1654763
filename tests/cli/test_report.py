"""`report`: what is in the bundle, what never is, and that no half of one is left."""

import json
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stele.cli import report
from stele.cli.redaction import LEFT_OUT, text_without_secrets, without_secrets
from tests.cli.conftest import Ran, Run
from tests.cli.served_objects import cluster, listing, member, plan, pod
from tests.cli.test_tablets import Shell, answer, page_of

PLANTED = "hunter2planted"
JWT = f"eyJhbGciOiJIUzI1NiJ9.eyJ{PLANTED}.sig-{PLANTED}"
KEY = f"-----BEGIN EC PRIVATE KEY-----\n{PLANTED}\n-----END EC PRIVATE KEY-----"
LINES = [
    f"password={PLANTED}",
    f'{{"password": "{PLANTED}"}}',
    f"client sent AUTH {PLANTED}",
    f"client sent AUTH app {PLANTED} again",
    f"Authorization: Bearer {PLANTED}",
    f"REDISCLI_AUTH={PLANTED} redis-cli",
    f"redis://app:{PLANTED}@demo-client:6379/0",
    f"redis-cli --pass {PLANTED} -p 6379",
    f"redis-cli -a {PLANTED}",
    f"requirepass: '{PLANTED}'",
    f"STELE_POD_TOKEN: {PLANTED}",
    f"user app on >{PLANTED} ~*",
    f'acl: [">{PLANTED}"]',
    f"acl: [<{PLANTED}, on]",
    f"- '!{PLANTED}'",
    f'"ACL" "SETUSER" "app" "#{PLANTED}" "on"',
    f"Error in ACL rule '>{PLANTED}': passwords are no rules",
    f"Error in ACL rule '!it's {PLANTED}': passwords are no rules",
    rf"{{\"acl\": [\"<{PLANTED}\"]}}",
    rf'{{"acl": ["\u003e{PLANTED}"]}}',
    rf"['on', '>a\'{PLANTED}']",
    f"rules are on,>{PLANTED}",
    JWT,
    KEY,
]
STAMP = "2026-01-01T00:00:00.000000000Z"
HARMLESS = '{"timestamp":"t","level":"INFO","logger":"stele.x","message":"partition 5","partition":5}'
JSON_LINES = [
    json.dumps({"message": f"x {line}", "exception": f"y\n{line}", "partition": 5}) for line in LINES
] + [json.dumps({"message": json.dumps({"password": PLANTED})}), HARMLESS]
TEMPLATE = {
    "env": [{"name": "ANY", "value": PLANTED}, {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
    "containers": [
        {
            "name": "sidecar",
            "command": ["run", PLANTED],
            "args": [PLANTED],
            "env": [{"name": "X", "value": PLANTED}],
            "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "X-Key", "value": PLANTED}]}},
        }
    ],
    "annotations": {"example.com/note": PLANTED},
}


def objects() -> dict[str, list[Any]]:
    """The objects of a cluster, with a secret wherever a field can have one."""
    here = {"namespace": "ns"}
    stored = cluster(spec={"podTemplate": TEMPLATE})
    stored["metadata"] |= {
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"spec": TEMPLATE}),
            "stele.dev/paused": "true",
        },
        "managedFields": [{"manager": PLANTED}],
    }
    owned = {"labels": {"stele.dev/cluster-uid": "uid-demo"}, **here}
    claim = {
        "metadata": {
            "name": "demo-0",
            "annotations": {"stele.dev/cluster-spec": json.dumps(TEMPLATE)},
            **owned,
        }
    }
    running = pod("demo-0", "member", "transfer", restarts=1)
    running["spec"]["containers"][0] |= {"image": "stele-member:1", "env": TEMPLATE["env"]}
    rules = [*(f"{mark}{PLANTED}" for mark in "><#!"), ">7", "on <8", "+get", "~orders:*"]
    fault = f"spec.acl: Error in ACL rule '>{PLANTED}': passwords are no rules"
    user = {
        "metadata": {"name": "shop", **here},
        "spec": {"cluster": "demo", "acl": rules},
        "status": {"conditions": [{"type": "Ready", "message": fault}]},
    }
    events = [
        {"metadata": {"name": str(n), **here}, "involvedObject": {"name": "demo-0"}, "message": line}
        for n, line in enumerate(LINES)
    ]
    foreign = {"metadata": {"name": "x", **here}, "involvedObject": {"name": "else"}, "message": "foreign"}
    return {
        "tabletclusters": [stored, cluster("other")],
        "tabletmembers": [member(0), member(0, "other")],
        "tabletusers": [user],
        "tabletrebalances": [plan(reason=f"password={PLANTED}")],
        "pods": [running, pod("other-0", "member", of="other")],
        "persistentvolumeclaims": [claim],
        "configmaps": [
            {"metadata": {"name": "demo-table", **owned}, "data": {"head": "{}"}},
            {"metadata": {"name": "settings-of-others", **here}, "data": {"any": PLANTED}},
        ],
        "controllerrevisions": [{"metadata": {"name": "demo-1", **owned}, "data": {"podTemplate": TEMPLATE}}],
        "secrets": [{"metadata": {"name": "demo-admin-tls", **owned}, "data": {"tls.key": PLANTED}}],
        "events": [*events, foreign],
    }


async def log(request: web.Request) -> web.Response:
    which = "before" if request.query["previous"] == "true" else "now"
    lines = "\n".join([f"{which} begins", *LINES, *JSON_LINES, "the end"]).split("\n")
    return web.Response(text="\n".join(f"{STAMP} {line}" for line in lines))


async def proxied(request: web.Request) -> web.Response:
    path = request.match_info["path"]
    if path == "metrics":
        return web.Response(text=f'stele_up{{token="{PLANTED}"}} 1\nstele_down 0\n')
    if path == "v1/sessions":
        return web.json_response({"code": "CLOSED", "detail": f"password={PLANTED}"}, status=500)
    return web.json_response({"asked": path, "pass": PLANTED, "log": LINES})


async def written(run: Run, folder: Path, *words: str, **how: Any) -> tuple[Ran, dict[str, str]]:
    """What the command says, and the files of the bundle."""
    file = folder / "bundle.tar.gz"
    async with listing(folder, objects, **({"log": log, "proxied": proxied} | how)) as path:
        ran = await Shell(run, path)("report", "demo", str(file), *words)
    if not file.exists():
        return ran, {}
    with tarfile.open(file) as archive:
        found = {}
        for info in archive:
            content = archive.extractfile(info)
            assert content is not None
            found[info.name] = content.read().decode()
    return ran, found


async def test_a_bundle_has_everything_but_secrets(run: Run, tmp_path: Path) -> None:
    ran, files = await written(run, tmp_path)
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'bundle.tar.gz'}\n")
    assert (tmp_path / "bundle.tar.gz").stat().st_mode & 0o077 == 0
    assert [name for name, text in files.items() if PLANTED in text] == []
    assert {
        "demo/versions.json",
        "demo/errors.txt",
        "demo/table.json",
        "demo/objects/tabletclusters.json",
        "demo/objects/events.json",
        "demo/members/demo-0/tablets.json",
        "demo/members/demo-0/metrics.txt",
        "demo/logs/demo-0/member.log",
        "demo/logs/demo-0/member.previous.log",
        "demo/logs/demo-0/transfer.log",
    } <= files.keys()
    assert not any("secret" in name for name in files)
    (only,) = json.loads(files["demo/objects/tabletclusters.json"])
    assert only["metadata"]["annotations"]["stele.dev/paused"] == "true"
    assert only["spec"]["podTemplate"]["env"][1]["valueFrom"] == {"secretKeyRef": {"name": "s"}}
    assert [each["metadata"]["name"] for each in json.loads(files["demo/objects/configmaps.json"])] == [
        "demo-table"
    ]
    (user,) = json.loads(files["demo/objects/tabletusers.json"])
    marks = [f"{mark}{LEFT_OUT}" for mark in (">", "<", "#", "!", ">", "on <")]
    assert user["spec"]["acl"] == [*marks, "+get", "~orders:*"]
    assert "foreign" not in files["demo/objects/events.json"]
    assert "v1.34.1" in files["demo/versions.json"]
    assert "stele-member:1" in files["demo/versions.json"]
    shown = files["demo/logs/demo-0/member.log"]
    assert shown.startswith(f"{STAMP} now begins\n")
    assert shown.endswith("the end\n")
    assert files["demo/logs/demo-0/member.previous.log"].startswith(f"{STAMP} before begins")
    assert "stele_down 0" in files["demo/members/demo-0/metrics.txt"]


async def test_what_cannot_be_read_is_named_and_the_rest_is_there(run: Run, tmp_path: Path) -> None:
    ran, files = await written(run, tmp_path, forbidden=["events", "pods"])
    assert ran.code == 0
    missing = files["demo/errors.txt"].splitlines()
    assert [line.split(":")[0] for line in missing] == [
        "versions.json",
        "objects/pods.json",
        "objects/operators.json",
        "objects/events.json",
        "members/demo-0/sessions.json",
    ]
    assert "5 things could not be read, or not whole; errors.txt in it names them" in ran.err
    assert "demo/members/demo-0/tablets.json" in files


async def test_an_interrupt_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "_log", interrupted)
    ran, _ = await written(run, tmp_path)
    assert ran.code == 130
    assert [each.name for each in tmp_path.iterdir()] == ["kubeconfig"]


async def test_a_file_that_is_there_and_a_cluster_that_is_not(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "there"
    file.write_text("mine")
    async with listing(tmp_path, objects) as path:
        ask = Shell(run, path)
        ran = await ask("report", "demo", str(file))
        assert (ran.code, "exists already" in ran.err, file.read_text()) == (2, True, "mine")
        ran = await ask("report", "demo", str(tmp_path / "no" / "file"))
        assert (ran.code, "cannot be written: No such file" in ran.err) == (2, True)
        ran = await ask("report", "demi", str(tmp_path / "new"))
        assert (ran.code, 'there is no TabletCluster "demi"' in ran.err) == (1, True)
        assert not (tmp_path / "new").exists()


async def test_large_logs_and_bundles_are_cut(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log its end stays: what happened last."""
    monkeypatch.setattr(report, "LOG_BYTES_MAX", 50)
    _, files = await written(run, tmp_path)
    cut = "what comes before the last 50 bytes is left out"
    assert files["demo/logs/demo-0/member.log"] == f"({cut})\n{STAMP} the end\n"
    assert f"logs/demo-0/member.log: {cut}" in files["demo/errors.txt"].splitlines()
    (tmp_path / "bundle.tar.gz").unlink()
    monkeypatch.setattr(report, "REPORT_BYTES_MAX", 4_000)
    ran, files = await written(run, tmp_path)
    assert ran.code == 0
    assert "bytes more than the 4000 of a report" in files.pop("demo/errors.txt")
    assert sum(map(len, files.values())) <= 4_000


async def test_the_rest_of_a_key_is_left_out_where_a_log_begins(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def log(_: web.Request) -> web.Response:
        lines = ["begins", *KEY.splitlines(), "then", "the end"]
        return web.Response(text="".join(f"{STAMP} {line}\n" for line in lines))

    size = len(f"{STAMP} {PLANTED}\n{STAMP} {KEY.splitlines()[-1]}\n{STAMP} then\n{STAMP} the end\n")
    monkeypatch.setattr(report, "LOG_BYTES_MAX", size)
    _, files = await written(run, tmp_path, log=log)
    _, *lines = files["demo/logs/demo-0/member.log"].splitlines()
    assert lines == [LEFT_OUT, f"{STAMP} then", f"{STAMP} the end"]


async def tablets_of(
    run: Run, folder: Path, answers: dict[str, web.Response | Any]
) -> tuple[dict[str, Any], list[str]]:
    """What the bundle has of a member that answers to `after` like this, and what it says of it."""

    async def proxied(request: web.Request) -> web.Response:
        if request.match_info["path"] != "v1/tablets":
            return web.json_response({})
        found = answers[request.query.get("after", "")]
        return found if isinstance(found, web.Response) else answer(found)

    _, files = await written(run, folder, proxied=proxied)
    told = [line for line in files["demo/errors.txt"].splitlines() if "tablets.json" in line]
    return json.loads(files["demo/members/demo-0/tablets.json"]), told


async def test_tablets_of_all_pages_are_in_it(run: Run, tmp_path: Path) -> None:
    pages = {"": page_of(3, 3), "3": page_of(7, 7), "7": page_of(9, None)}
    found, told = await tablets_of(run, tmp_path, pages)
    assert [each["partition"] for each in found["tablets"]] == [3, 7, 9]
    assert (found["name"], found["next"], told) == ("m0", None, [])


@pytest.mark.parametrize(
    ("second", "pages_max", "partitions", "said"),
    [
        (lambda: page_of(7, 3), 9, [3, 7], "has 2 tablets; those after 3 are missing"),
        (lambda: page_of(7, 1 << 40), 9, [3, 7], "has 2 tablets; those after 1099511627776 are missing"),
        (lambda: page_of(7, 8), 2, [3, 7], "has 2 tablets; those after 8 are missing"),
        (lambda: web.Response(status=503), 9, [3], "has 1 tablets; those after 3 are missing: UNAVAILABLE"),
    ],
)
async def test_tablets_that_are_missing_are_said(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    second: Callable[[], Any],
    pages_max: int,
    partitions: list[int],
    said: str,
) -> None:
    """Pages that do not go on, too many, and one that cannot be read."""
    monkeypatch.setattr(report, "TABLET_PAGES_MAX", pages_max)
    found, told = await tablets_of(run, tmp_path, {"": page_of(3, 3), "3": second()})
    assert [each["partition"] for each in found["tablets"]] == partitions
    assert [line.startswith(f"members/demo-0/tablets.json: {said}") for line in told] == [True]


@pytest.mark.parametrize("line", LINES)
def test_secrets_in_text_are_left_out_and_the_rest_stays(line: str) -> None:
    found = text_without_secrets(f"before it: {line}\nafter it")
    assert (PLANTED in found, LEFT_OUT in found) == (False, True)
    assert found.startswith("before it: ")
    assert found.endswith("\nafter it")


def test_names_of_secrets_stay() -> None:
    stored = {"secretName": "demo-tls", "secretRef": {"name": "pw"}, "tokens": 3}
    assert without_secrets(stored) == stored
    text = "member demo-0: 12 partitions are safe, author unknown; passed 3 of 4"
    assert text_without_secrets(text) == text


PIECES = ["a-", "eyJ-", "://a:", "AUTH a ", "<aaaaaaa", "password", "-----BEGIN "]
PIECES += ["'>", '"<a', '\\">', "ACL rule '>", "\\u003e", ",!aaaaa"]


@pytest.mark.parametrize("piece", PIECES)
def test_lines_that_fit_no_pattern_take_no_time(piece: str) -> None:
    begun = time.monotonic()
    text_without_secrets(piece * (65_536 // len(piece)))
    assert time.monotonic() - begun < 20


async def test_progress_is_said(run: Run, tmp_path: Path) -> None:
    ran, _ = await written(run, tmp_path)
    assert "reading logs/demo-0/member.log" in ran.err


async def test_lines_of_json_stay_json_and_as_they_are_without_secrets(run: Run, tmp_path: Path) -> None:
    _, files = await written(run, tmp_path)
    lines = [line.partition(" ")[2] for line in files["demo/logs/demo-0/member.log"].splitlines()]
    fields = [json.loads(line) for line in lines if line.startswith("{") and "message" in line]
    assert len(fields) == len(JSON_LINES)
    assert HARMLESS in lines
    assert all(each["partition"] == 5 for each in fields if "exception" in each)
    assert all(LEFT_OUT in each["exception"] for each in fields if "exception" in each)
