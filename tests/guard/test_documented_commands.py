"""What users copy from the pages works: commands are taken, manifests and patches are valid."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import yaml
from typer.exceptions import TyperException
from typer.main import get_command

from stele.cli.main import app
from stele.model import Unreadable, crd
from stele.model.conditions import ConditionType
from tests.guard.pages import ROOT, Block, blocks, files, pages

DEFINITIONS = {each.model.KIND: each for each in crd.DEFINITIONS}
SCHEMAS = {kind: crd.schema_of(each.model) for kind, each in DEFINITIONS.items()}
KINDS = {
    name: kind
    for kind, each in DEFINITIONS.items()
    for name in (kind.lower(), each.model.PLURAL, each.short, f"{each.model.PLURAL}.stele.dev")
}
"""Our kinds by the names that kubectl takes for them."""
OF_KUBERNETES = {
    *(
        "configmap",
        "crd",
        "deployment",
        "endpointslices",
        "events",
        "job",
        "namespace",
        "networkpolicies",
        "node",
        "nodes",
        "pod",
        "pods",
    ),
    *("lease", "pv", "pvc", "rolebinding", "secret", "serviceaccount"),
}
SMALLEST: dict[str, dict[str, Any]] = {
    "TabletCluster": {"members": 3, "storage": {"size": "1Gi"}},
    "TabletMember": {"cluster": "demo", "index": 0},
    "TabletRebalance": {"cluster": "demo"},
    "Keyspace": {"cluster": "demo"},
    "TabletUser": {"cluster": "demo", "password": {"generated": True}},
}
"""Valid specs, which patches are merged into."""


# kubectl stele --------------------------------------------------------------------------------------------


def _refusal(command: Any, words: list[str]) -> str:
    """Return why `kubectl stele` would not take these words; empty when it would."""
    try:
        context = command.make_context("stele", list(words), resilient_parsing=False)
    except SystemExit:
        return ""  # --help
    except TyperException as error:
        return f"{error}"
    rest = [*getattr(context, "_protected_args", []), *context.args]
    if not rest or not hasattr(command, "commands"):
        return f"{rest} left over" if rest else ""
    found = command.commands.get(rest[0])
    return _refusal(found, rest[1:]) if found else f"no command {rest[0]}"


def test_commands_of_kubectl_stele_are_taken() -> None:
    lines = [
        (page, match[1])
        for page, _, block in blocks()
        for match in re.finditer(r"^ *\S*kubectl[- ]stele ([^|#;&\n>]+)", block, re.M)
    ]
    assert len(lines) > 20
    refused = {(page, line): _refusal(get_command(app), shlex.split(line)) for page, line in lines}
    assert {place: why for place, why in refused.items() if why} == {}


def test_commands_that_the_text_names_are_taken() -> None:
    """They may leave out arguments: `kubectl stele why`."""
    lines = [
        (page, match[1].replace("STATE", "Active"))
        for page, text in pages().items()
        for match in re.finditer(r"`kubectl[- ]stele ([^`]+)`", text)
    ]
    assert len(lines) > 20
    refused = {(page, line): _refusal(get_command(app), shlex.split(line)) for page, line in lines}
    assert {place: why for place, why in refused.items() if why and "Missing" not in why} == {}


@pytest.mark.parametrize("path", ["charts/stele/templates/NOTES.txt", "docs/operating/install.md"])
def test_who_has_installed_is_told_of_the_page(path: str) -> None:
    text = re.sub(r"\{\{.*?\}\}", "stele", (ROOT / path).read_text())
    named = [shlex.split(line) for line in re.findall(r"^ *kubectl stele (.+)", text, re.M)]
    assert ["page", "-n", "stele", "--open"] in named
    assert {tuple(words): why for words in named if (why := _refusal(get_command(app), words))} == {}


def test_a_wrong_command_is_found() -> None:
    command = get_command(app)
    assert _refusal(command, ["rolout", "status"])
    assert "Missing" in _refusal(command, ["rollout", "status"])
    assert "No such option" in _refusal(command, ["drain", "demo-2", "--undone"])


# kubectl --------------------------------------------------------------------------------------------------


def _shell() -> list[Block]:
    """Return the blocks of a shell, also those that are only indented."""
    return [
        block
        for block in blocks()
        if block.language == "sh" or re.match(r" {4}(kubectl|helm|make|git|docker) ", block.text)
    ]


@pytest.mark.parametrize("block", _shell(), ids=lambda block: block.page)
def test_a_shell_reads_each_block(block: Block) -> None:
    ran = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert ran.stderr == ""


def _lines() -> Iterator[tuple[str, str]]:
    """Page and text of each line of a shell, continued ones joined, without here documents, and of each
    `kubectl ...` in a text."""
    for page, _, text in _shell():
        joined = re.sub(r"<<(\w+)\n.*?^ *\1$", "", text.replace("\\\n", " "), flags=re.M | re.S)
        yield from ((page, line) for line in joined.splitlines())
    for page, text in pages().items():
        yield from ((page, match) for match in re.findall(r"`(kubectl (?!stele)[^`\n]+)`", text))


def _commands(line: str) -> Iterator[list[str]]:
    """Return the commands of a line; what the shell puts in is one word."""
    line = re.sub(r"\$\([^()]*\)", "INNER", line)
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    words.whitespace_split, words.commenters = True, "#"
    command: list[str] = []
    for word in words:
        if set(word) <= set("|&;<>"):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _too_early(text: str) -> list[str]:
    """Return the lines right after a `port-forward ... &` that do not give it time to listen."""
    joined = text.replace("\\\n", " ")
    return re.findall(
        r"^[^\n]*\bport-forward\b[^\n]*&[ \t]*\n\s*(?!sleep |wait\b|until )(\S[^\n]*)", joined, re.M
    )


def test_what_uses_a_forwarded_port_waits_for_it() -> None:
    texts = [(block.page, block.text) for block in blocks()]
    texts += files("charts/stele/templates/NOTES.txt").items()
    forwarding = {page for page, text in texts if re.search(r"port-forward .*&$", text, re.M)}
    assert {"README.md", "charts/stele/templates/NOTES.txt"} <= forwarding
    assert [(page, line) for page, text in texts for line in _too_early(text)] == []


@pytest.mark.parametrize(
    ("text", "early"),
    [
        ("kubectl port-forward pod/x 1 &\ncurl localhost:1\n", ["curl localhost:1"]),
        ("  kubectl -n x \\\n  port-forward pod/x 1 &\n\n  curl x\n", ["curl x"]),
        ("kubectl port-forward pod/x 1 &\nsleep 2\ncurl localhost:1\n", []),
        ("kubectl port-forward pod/x 1\n", []),
    ],
)
def test_a_use_of_a_port_that_is_not_yet_forwarded_is_found(text: str, early: list[str]) -> None:
    assert _too_early(text) == early


class Kubectl(NamedTuple):
    page: str
    verb: str
    words: list[str]
    """Arguments, without options."""
    options: list[tuple[str, str]]


WITH_VALUE = {"-n", "-l", "-L", "-o", "-f", "-p", "--field-selector"}


def _kubectl(page: str, command: list[str]) -> Kubectl:
    words, options, rest = list[str](), list[tuple[str, str]](), iter(command[1:])
    for word in rest:
        if word in WITH_VALUE:
            options.append((word, next(rest)))
        elif word.startswith("-") and word != "-":
            name, _, value = word.partition("=")
            options.append((name, value))
        else:
            words.append(word)
    return Kubectl(page, words[0] if words else "", words[1:], options)


def _used() -> list[Kubectl]:
    found = [
        _kubectl(page, command)
        for page, line in _lines()
        for command in _commands(line)
        if command and command[0] == "kubectl" and "stele" not in command[1:2]
    ]
    assert len(found) > 40
    return found


def _problems(used: Kubectl) -> Iterator[str]:
    """Return what of the command does not exist."""
    kinds = [kind for word in used.words[:1] for kind in word.partition("/")[0].split(",")]
    if used.verb in ("get", "delete", "patch", "scale", "wait", "annotate", "label", "explain"):
        yield from (
            f"kind {kind}"
            for kind in kinds
            if kind.partition(".")[0] not in KINDS and kind not in {*OF_KUBERNETES, "stele"}
        )
    ours = [KINDS[kind.partition(".")[0]] for kind in kinds if kind.partition(".")[0] in KINDS]
    for kind in ours:
        yield from _of_kind(used, kind)


def _of_kind(used: Kubectl, kind: str) -> Iterator[str]:
    for name, value in used.options:
        if name == "--for" and value.startswith("condition="):
            condition = value.removeprefix("condition=").partition("=")[0]
            yield from () if condition in list(ConditionType) else (f"condition {condition}",)
        if name == "-o" and value.startswith("jsonpath="):
            path = re.sub(r"\[.*?\]", "", value.removeprefix("jsonpath=").strip("{}"))
            yield from _missing(kind, path.strip("."))
        if name == "-p":
            yield from _invalid_patch(kind, json.loads(value))
    if used.verb == "explain":
        yield from _missing(kind, used.words[0].partition(".")[2])


def _missing(kind: str, path: str) -> Iterator[str]:
    """Return the path if the kind has no such field; below what Kubernetes defines there is anything."""
    schema = SCHEMAS[kind] | {"properties": {"metadata": {}, **SCHEMAS[kind]["properties"]}}
    for name in path.split(".") if path else ():
        schema = schema.get("items", schema)
        if "properties" not in schema:
            return
        if name not in schema["properties"]:
            yield f"{kind} has no {path}"
            return
        schema = schema["properties"][name]


def _merged(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    merged = {name: value for name, value in base.items() if patch.get(name, ...) is not None}
    for name, value in patch.items():
        if isinstance(value, dict):
            merged[name] = _merged(base.get(name) or {}, value)
        elif value is not None:
            merged[name] = value
    return merged


def _invalid_patch(kind: str, patch: dict[str, Any]) -> Iterator[str]:
    if not set(patch) <= {"spec", "metadata"}:
        yield f"patch of {set(patch)}"
    yield from _invalid(kind, _merged(SMALLEST[kind], patch.get("spec") or {}))


def _invalid(kind: str, spec: dict[str, Any]) -> Iterator[str]:
    """Return the fields that the kind lacks or requires, and why the model does not read their values."""
    yield from _unknown(SCHEMAS[kind]["properties"]["spec"], spec, "spec")
    found = DEFINITIONS[kind].model.read({"metadata": {"name": "demo", "generation": 1}, "spec": spec})
    if isinstance(found, Unreadable):
        yield str(found)


def test_what_kubectl_is_asked_for_exists() -> None:
    wrong = [(used.page, used.verb, why) for used in _used() for why in _problems(used)]
    assert wrong == []


def test_patches_and_conditions_are_met() -> None:
    options = [name for used in _used() for name, _ in used.options]
    assert options.count("-p") >= 4
    assert options.count("--for") >= 5


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("kubectl get stx", "kind stx"),
        ("kubectl -n stele wait stc/demo --for=condition=Redy", "condition Redy"),
        ("""kubectl patch stm demo-1 --type=merge -p '{"spec":{"lita":true}}'""", "spec.lita is unknown"),
        ("""kubectl patch stc demo -p '{"spec":{"members":"x"}}'""", "spec.members"),
        ("kubectl explain tabletcluster.spec.storage.sise", "TabletCluster has no spec.storage.sise"),
        ("kubectl get stc demo -o jsonpath='{.status.epok}'", "TabletCluster has no status.epok"),
    ],
)
def test_a_wrong_use_of_kubectl_is_found(line: str, why: str) -> None:
    (command,) = _commands(line)
    (problem,) = _problems(_kubectl("page", command))
    assert why in problem


def test_labels_and_annotations_that_pages_name_exist() -> None:
    sources = "".join(files("operator/*.py", "charts/*", "examples/*").values())
    known = set(re.findall(r"stele\.dev/[a-z][a-z0-9-]*", sources))
    named = {
        (page, name)
        for page, text in pages().items()
        for name in re.findall(r"(?<![\w.-])stele\.dev/[a-z][a-z0-9-]*", text)
    }
    assert {place for place in named if place[1].rstrip("-") not in known} == set()


# Manifests ------------------------------------------------------------------------------------------------


def _unknown(schema: dict[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Fields of a manifest that the schema lacks, and those that it lacks and the schema requires."""
    if isinstance(value, list):
        for each in value:
            yield from _unknown(schema.get("items", {}), each, path)
    if not isinstance(value, dict) or "properties" not in schema:
        return
    yield from (f"{path}.{name} is missing" for name in schema.get("required", []) if name not in value)
    for name, inner in value.items():
        if name in schema["properties"]:
            yield from _unknown(schema["properties"][name], inner, f"{path}.{name}")
        else:
            yield f"{path}.{name} is unknown"


def _manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    texts = [*((block.page, block.text) for block in blocks()), *files("examples/*.yaml").items()]
    for place, text in texts:
        for match in re.finditer(r"^ *apiVersion: stele\.dev.*?(?=^END|^---|\Z)", text, re.M | re.S):
            yield place, yaml.safe_load(match[0])


def test_manifests_are_valid() -> None:
    manifests = list(_manifests())
    assert len(manifests) >= 6
    wrong = [(place, why) for place, found in manifests for why in _invalid(found["kind"], found["spec"])]
    assert wrong == []


@pytest.mark.parametrize(
    "block", [each for each in blocks() if each.language in ("yaml", "json")], ids=lambda block: block.page
)
def test_blocks_of_yaml_and_json_can_be_read(block: Block) -> None:
    assert list(yaml.safe_load_all(block.text))


def test_a_wrong_manifest_is_found() -> None:
    wrong = {"members": 3, "storage": {"sise": "2Gi"}}
    fields = ["spec.storage.size is missing", "spec.storage.sise is unknown"]
    assert list(_invalid("TabletCluster", wrong))[:2] == fields
    (why,) = _invalid("TabletCluster", {"members": 3, "storage": {"size": "lots"}})
    assert "spec.storage.size" in why
