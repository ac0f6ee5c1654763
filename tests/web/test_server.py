"""What the page's server answers, and what it refuses."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from e2e.page.facts import KEY, Known, facts_of
from e2e.page.served import served
from stele.web import server
from stele.web.server import is_loopback

DEMO = f"/v1/clusters/{KEY[0]}/{KEY[1]}"
PATHS = ("/", "/page.js", "/page.css", "/v1/clusters", DEMO, f"{DEMO}/why", "/nothing", f"{DEMO}x")


@pytest.fixture
def known() -> Known:
    return Known(facts_of())


@pytest.fixture
async def url(known: Known) -> AsyncIterator[str]:
    async with served(known) as found:
        yield found


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize("path", PATHS)
async def test_every_answer_forbids_what_the_page_does_not_need(
    url: str, client: aiohttp.ClientSession, path: str
) -> None:
    async with client.get(url + path) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Set-Cookie" not in answer.headers
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", PATHS)
async def test_it_only_reads(url: str, client: aiohttp.ClientSession, path: str, method: str) -> None:
    async with client.request(method, url + path, data=b"{}") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", PATHS)
async def test_a_request_for_another_host_is_refused(
    url: str, client: aiohttp.ClientSession, path: str
) -> None:
    for host in (
        "attacker.example",
        "127.0.0.1.attacker.example",
        "localhost.attacker.example:80",
        "10.0.0.1",
    ):
        async with client.get(url + path, headers={"Host": host}) as answer:
            assert answer.status == 421, host


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("localhost", True),
        ("LOCALHOST:8081", True),
        ("127.0.0.1:1", True),
        ("[::1]:8081", True),
        ("[::1]", True),
        ("", False),
        ("::1", False),
        ("127.0.0.1:", False),
        ("127.0.0.1:x", False),
        ("localhost.", False),
        ("user@localhost", False),
    ],
)
def test_hosts_of_loopback(host: str, ours: bool) -> None:
    assert is_loopback(host) is ours


async def test_files_are_not_sent_again(url: str, client: aiohttp.ClientSession) -> None:
    async with client.get(f"{url}/page.js") as answer:
        mark = answer.headers["ETag"]
        assert answer.content_type == "text/javascript"
    async with client.get(f"{url}/page.js", headers={"If-None-Match": mark}) as answer:
        assert (answer.status, await answer.read()) == (304, b"")
    async with client.head(url) as answer:
        assert answer.status == 200


async def test_a_document_and_what_changed_since(url: str, client: aiohttp.ClientSession) -> None:
    async with client.get(f"{url}/v1/clusters") as answer:
        assert await answer.json() == [list(KEY)]
    async with client.get(url + DEMO) as answer:
        first = await answer.json()
    async with client.get(url + DEMO, params={"since": first["version"]}) as answer:
        assert (await answer.json())["rows"] == []
    assert len(first["rows"]) == 12


async def test_why_says_what_the_command_says(url: str, client: aiohttp.ClientSession) -> None:
    for about, expected in (("", "phase Running"), ("5", "version 1, held by"), ("demo-1", "state Active")):
        async with client.get(f"{url}{DEMO}/why", params={"about": about}) as answer:
            assert (await answer.json())["facts"][0].startswith(expected)
    for about, expected in (("12", "expected a whole number from 0 to 11"), ("demo-9", "no member")):
        async with client.get(f"{url}{DEMO}/why", params={"about": about}) as answer:
            assert answer.status == 400
            assert expected in (await answer.json())["problem"]


async def test_explanations_have_a_limit(
    url: str, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    async def wait(*_: object) -> list[str]:
        await go_on.wait()
        return []

    monkeypatch.setattr(server.asyncio, "to_thread", wait)

    async def ask() -> int:
        async with client.get(f"{url}{DEMO}/why") as answer:
            return answer.status

    asked = {asyncio.create_task(ask()) for _ in range(server.EXPLAINING_MAX + 1)}
    done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert [each.result() for each in done] == [503]
    go_on.set()
    assert await asyncio.gather(*waiting) == [200] * server.EXPLAINING_MAX


async def test_it_says_why_it_knows_nothing(url: str, client: aiohttp.ClientSession, known: Known) -> None:
    async with client.get(f"{url}/v1/clusters/stele/other") as answer:
        assert answer.status == 404
    known.shown = None
    async with client.get(url + DEMO) as answer:
        assert answer.status == 503
        assert "does not run" in (await answer.json())["problem"]
    known.why_not = "another process leads"
    for path in ("/v1/clusters", f"{DEMO}/why"):
        async with client.get(url + path) as answer:
            assert (answer.status, await answer.json()) == (503, {"problem": "another process leads"})
            assert answer.headers["Connection"] == "close", "a new one may be forwarded to the leader"


async def test_one_document_serves_many_pages_for_a_moment(
    url: str, client: aiohttp.ClientSession, known: Known
) -> None:
    async with client.get(url + DEMO) as answer:
        before = await answer.read()
    known.shown = facts_of(message="other")
    async with client.get(url + DEMO) as answer:
        now = await answer.read()
    known.seconds += server.VIEW_SECONDS
    async with client.get(url + DEMO) as answer:
        later = await answer.read()
    assert (before == now, before == later) == (True, False)
    known.shown = facts_of(message="another one")
    # Who presents what is no version gets what the others get.
    async with client.get(url + DEMO, params={"since": "9-9"}) as answer:
        assert await answer.read() == later


def test_documents_that_are_kept_have_a_limit() -> None:
    views = server.Views(lambda: 0.0)
    for number in range(3 * server.VIEWS_MAX):
        views.keep(KEY, f"3-{number}", b"%d" % number)
    assert len(views) == server.VIEWS_MAX
    assert views.find(KEY, "3-0") is None
    last = 3 * server.VIEWS_MAX - 1
    assert views.find(KEY, f"3-{last}") == b"%d" % last
