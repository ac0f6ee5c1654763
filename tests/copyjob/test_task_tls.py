"""A Spark task knows the source of a copy by what its job says, and needs no certificate."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stele.copyjob.messages import SliceResult, decode_result, encode
from stele.copyjob.task import run_slice
from stele.core.security.level import InternalTls
from stele.errors import BadInput
from stele.transfer.client import copy
from stele.transfer.jobs.board import check_job
from stele.wire.copy.jobs import CopyJob, SourceTls
from tests.fakes.pki import FakeCa, shared_ca
from tests.transfer.checkpoints import (
    CLUSTER,
    ENTRIES,
    ITEM,
    TOKEN,
    certify,
    make_checkpoint,
    set_level,
    transfer,
)

CA = shared_ca().certificate.decode()
TLS = SourceTls(CLUSTER, CA)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    make_checkpoint(folder, "s-1", {7: (3, ENTRIES)})
    return folder


async def run(
    volume: Path, tmp_path: Path, level: InternalTls, days: int = 30, **changes: Any
) -> SliceResult:
    staging = tmp_path / "destination" / "staging"
    staging.mkdir(parents=True)
    set_level(volume, level)
    async with transfer(volume, certify(tmp_path / "tls", "m-0", days=days)) as url:
        job = CopyJob("s-1", "m-1", "m-1", url, TOKEN, (ITEM,), source="m-0")
        body = encode(msgspec.structs.replace(job, **changes))
        slice_ = (0, 1, body, str(staging), "http://127.0.0.1:1")
        return decode_result(await asyncio.to_thread(run_slice, slice_))


@pytest.mark.parametrize(
    ("level", "tls"),
    [
        (InternalTls.OFF, None),
        (InternalTls.ACCEPT, None),
        (InternalTls.ACCEPT, TLS),
        (InternalTls.DIAL, None),
        (InternalTls.DIAL, TLS),
        (InternalTls.REQUIRED, TLS),
    ],
)
async def test_a_task_copies_from_a_source_of_the_level_of_its_job_or_a_neighbour(
    volume: Path, tmp_path: Path, level: InternalTls, tls: SourceTls | None
) -> None:
    assert (await run(volume, tmp_path, level, tls=tls)).finished == (ITEM.partition,)


async def test_a_source_whose_certificate_ended_lately_is_taken_where_members_take_it(
    volume: Path, tmp_path: Path
) -> None:
    done = await run(volume, tmp_path, InternalTls.REQUIRED, days=-6, tls=TLS)
    assert done.finished == (ITEM.partition,)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tls": None}, "the source answered 426: this port takes only TLS connections"),
        ({"tls": TLS, "source": "m-2"}, "certificate refused: it is m-0; expected m-2"),
        ({"tls": SourceTls("33333333-4444", CA)}, f"it is of cluster {CLUSTER}, and this is 33333333-4444"),
        ({"tls": SourceTls(CLUSTER, FakeCa("other").certificate.decode())}, "CERTIFICATE_VERIFY_FAILED"),
        ({"tls": TLS, "token": "wrong"}, "requires its token"),
        ({"tls": SourceTls(CLUSTER, CA, grace_expired=False), "days": -1}, "certificate has expired"),
        ({"tls": SourceTls(CLUSTER, "nonsense")}, "the CA "),
    ],
)
async def test_a_task_copies_from_nobody_else(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr(copy, "BACKOFF_SECONDS", 0.001)
    try:
        ended = await run(volume, tmp_path, InternalTls.REQUIRED, **changes)
        text = ended.text if ended.code else "it was copied"
    except RuntimeError as error:
        text = str(error)
    assert why in text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"source": ""}, "source is '', expected the name of a TabletMember, since tls is set"),
        ({"source": "M_0"}, "source is 'M_0', expected"),
        ({"tls": SourceTls("no uid", CA)}, "tls.cluster is 'no uid', expected the UID of a TabletCluster"),
        ({"tls": SourceTls(CLUSTER, "")}, "tls.trusted: 0, expected 1 to 1048576"),
        ({"tls": SourceTls(CLUSTER, "x" * (1 << 20) + "x")}, "tls.trusted: 1048577, expected 1 to 1048576"),
    ],
)
def test_a_job_that_contradicts_itself_is_refused(changes: dict[str, Any], text: str) -> None:
    job = CopyJob("s-1", "m-1", "m-1", "http://10.0.0.1:7002", TOKEN, (ITEM,), source="m-0", tls=TLS)
    check_job(job)
    with pytest.raises(BadInput) as refused:
        check_job(msgspec.structs.replace(job, **changes))
    assert text in refused.value.text
