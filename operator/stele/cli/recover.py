"""`kubectl stele recover`: a new TabletCluster takes the volumes of one that was deleted."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stele.cli import output as out
from stele.cli.options import Where, on_cluster
from stele.core.control.volumes import RecoveryPolicy
from stele.errors import BadInput, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stele.adapters.kubernetes.console import Console
    from stele.model import TabletCluster

Object = dict[str, Any]


@on_cluster
def recover(
    where: Where,
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of the deleted TabletCluster.")],
    *,
    from_uid: Annotated[
        str, typer.Option("--from-uid", metavar="UID", help="Label stele.dev/cluster-uid of its claims.")
    ],
    policy: Annotated[
        RecoveryPolicy, typer.Option("--policy", help="Which tables count when those of the volumes differ.")
    ] = RecoveryPolicy.MERGE,
    accept_loss: Annotated[
        list[str] | None,
        typer.Option("--accept-loss", metavar="MEMBER", help="Leave out this member's volume."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("-f", "--filename", metavar="FILE", help="Take the spec of the TabletCluster in FILE."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
) -> None:
    """Create a TabletCluster again that was deleted by mistake, with the volumes that it left.

    Lists the volume claims, and creates the TabletCluster from the copy of its spec on them. The operator
    starts a member on each volume and puts the partition table together from all of them. While a volume is
    missing, nothing is changed, and the condition Stalled says which; then run the command again, with
    --accept-loss for each member whose data may be lost. A claim of such a member is set aside: it gets the
    label stele.dev/cluster-uid=UID-left-out, and keeps its data.

    \b
    Examples:
      kubectl get pvc -L stele.dev/cluster-uid -n stele
      kubectl stele recover demo --from-uid 6f0e0d0c-... --dry-run -n stele
      kubectl stele recover demo --from-uid 6f0e0d0c-... -n stele
    """
    spec = None if file is None else spec_of_file(file, cluster)
    volumes = {"clusterUID": from_uid, "policy": policy.value, "acceptLoss": sorted(accept_loss or ())}
    where.ask(lambda console: _recover(console, cluster, volumes, spec, dry_run=dry_run))


async def _recover(
    console: "Console", cluster: str, volumes: Object, spec: Object | None, *, dry_run: bool
) -> None:
    claims = await console.claims(cluster, volumes["clusterUID"])
    known = {each.metadata.name: each for each in await console.clusters()}
    present = known.get(cluster)
    if present is not None:
        _check_present(present, volumes["clusterUID"])
    left_out = [each for each in claims if each["metadata"]["name"] in volumes["acceptLoss"]]
    _show(claims, left_out)
    wanted = (spec_of_claims(claims) if spec is None else spec) if present is None else None
    if dry_run:
        changes = {"bootstrap": {"volumes": volumes}}
        out.data({"spec": changes if wanted is None else wanted | changes}, out.Output.YAML)
        return
    for claim in left_out:
        await console.set_aside(claim)
        print(f"{claim['metadata']['name']} is left out; its pod ends, its data stays")
    if wanted is None:
        await console.change_cluster(cluster, {"bootstrap": {"volumes": volumes}})
        print(f"{cluster} is changed; see: kubectl stele status {cluster}")
    else:
        await console.make_cluster(cluster, wanted | {"bootstrap": {"volumes": volumes}})
        print(f"{cluster} is created; see: kubectl stele status {cluster}")


def _check_present(present: "TabletCluster", uid: str) -> None:
    """Raise Refused unless the TabletCluster is one that recovers these volumes, and waits for it."""
    name, bootstrap = present.metadata.name, present.spec.bootstrap
    if present.metadata.uid == uid:
        raise Refused(f"TabletCluster {name} has this UID: it was not deleted, and has its volumes")
    if bootstrap is None or bootstrap.volumes.cluster_uid != uid:
        raise Refused(
            f"TabletCluster {name} exists and does not take these volumes, and never will; delete it "
            f"first (kubectl delete tabletcluster {name}); its own volumes stay"
        )
    if present.status.version_sum:
        raise Refused(f"TabletCluster {name} has its partition table: there is nothing to recover")


def _show(claims: "Sequence[Object]", left_out: "Sequence[Object]") -> None:
    rows = [
        (
            each["metadata"]["name"],
            str((each.get("status") or {}).get("phase", "")),
            str(((each.get("status") or {}).get("capacity") or {}).get("storage", "")),
            str(each["spec"].get("volumeName", "")),
            "left out" if each in left_out else "",
        )
        for each in claims
    ]
    out.table(("CLAIM", "STATUS", "CAPACITY", "VOLUME", ""), rows)


def spec_of_claims(claims: "Sequence[Mapping[str, Any]]") -> Object:
    """Return the newest copy of the spec on the claims. Raises BadInput when there is none."""
    from stele.model.ownership import SPEC_COPY

    texts = [(each["metadata"].get("annotations") or {}).get(SPEC_COPY) for each in claims]
    copies = [json.loads(text) for text in texts if text]
    if not copies:
        raise BadInput(
            f"no claim has a copy of the spec (annotation {SPEC_COPY}): write the TabletCluster as it was "
            "into a file, with the same partitions, and give it with -f FILE"
        )
    spec: Object = max(copies, key=lambda each: int(each["generation"]))["spec"]
    return spec


def spec_of_file(file: str, cluster: str) -> Object:
    """Return the spec in a file. Raises BadInput unless it is a TabletCluster of that name."""
    import yaml

    from stele.model import TabletCluster, Unreadable

    try:
        document = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadInput(f"-f {file} cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("kind") != "TabletCluster":
        raise BadInput(f"-f {file} is not one TabletCluster; give the manifest of {cluster}")
    model = TabletCluster.read(document)
    if isinstance(model, Unreadable):
        raise BadInput(f"-f {file}: {model}")
    if model.metadata.name != cluster:
        raise BadInput(f"-f {file} is {model.metadata.name}; expected {cluster}, as its claims are named")
    spec: Object = document["spec"]
    return spec
