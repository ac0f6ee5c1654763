"""The scheduled comparison with known vulnerabilities runs a target that is there, with pinned actions."""

import re

import yaml

from e2e.supply.locks import PROJECT

WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*"))
MAKEFILE = (PROJECT / "Makefile").read_text()


def test_workflows_pin_what_they_use_and_may_only_read() -> None:
    assert WORKFLOWS
    for path in WORKFLOWS:
        text = path.read_text()
        used = re.findall(r"uses: (\S+)", text)
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each) for each in used), used
        assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
        for target in re.findall(r"run: make (\S+)", text):
            assert f"\n{target}: " in MAKEFILE


def test_every_lock_is_compared_weekly() -> None:
    recipe = re.search(r"^audit: .*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert recipe
    assert "$(addprefix -r ,$(wildcard images/locks/*.txt))" in recipe[1]
    assert recipe[1].endswith("\t@$(PY) -m e2e.supply audit-crates\n")
    (audit,) = (yaml.safe_load(path.read_text()) for path in WORKFLOWS if path.stem == "audit")
    # YAML 1.1 reads the key `on` as true.
    assert len(audit[True]["schedule"]) == 1
    assert {"images/locks/**", "native/Cargo.lock"} < set(audit[True]["push"]["paths"])
    assert audit["jobs"]["audit"]["steps"][-1] == {"run": "make audit"}
