"""Orders to build a run of a bulk load that are wrong."""

import json

import aiohttp
import pytest

from stele.core.control.commands import MemberInfo
from stele.wire.storage.volume import TableFile, encode_file
from tests.transfer.checkpoints import transfer


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"source": "http://10.0.0.1:80"},
            "invalid build request: Expected `int`, got `str` - at `$.source`",
        ),
        ({"source": -2}, "invalid build request: Expected `int` >= -1 - at `$.source`"),
        ({"generation": 2**32}, "invalid build request: Expected `int` <= 4294967295"),
        ({"keyspace": "\udcff"}, "invalid build request: "),
    ],
)
async def test_a_bad_build_order_is_answered(volume, change, text):
    order = {"generation": 1, "keyspace": "k", "partitions": 16} | change
    body = json.dumps(order, ensure_ascii=False).encode(errors="surrogateescape")
    async with (
        transfer(volume) as url,
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/bulk/loads/l-1/partitions/3", data=body) as answer,
    ):
        assert answer.status == 400
        assert text in (await answer.json())["detail"]


async def test_a_run_is_fetched_of_members_of_the_table_alone(volume):
    order = {"generation": 1, "keyspace": "k", "partitions": 16, "source": 7}
    async with transfer(volume) as url, aiohttp.ClientSession() as http:

        async def told():
            async with http.post(f"{url}/v1/bulk/loads/l-1/partitions/3", json=order) as answer:
                assert answer.status == 503
                return (await answer.json())["detail"]

        assert "the table of this member cannot be read" in await told()
        (volume / "table").mkdir()
        table = TableFile(members=(MemberInfo(6, "m-6", "u", "127.0.0.1"),))
        (volume / "table" / "current").write_bytes(encode_file(table))
        assert "source is member 7, which this member's table does not name" in await told()
