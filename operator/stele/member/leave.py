"""`stele-member leave`: announce a planned stop to the process of this pod, and wait until it may stop."""

import time
from http.client import HTTPConnection, HTTPException

import msgspec

from stele.adapters import pod_token
from stele.errors import Unavailable
from stele.member import limits
from stele.member.control.planned_stop import StoppingRequest, StopStatus
from stele.member.settings import Settings
from stele.wire.unreadable import UNREADABLE


def leave(settings: Settings, seconds: float) -> str:
    """Return what came of it; a stop is never refused."""
    begin = time.monotonic()
    while True:
        passed = time.monotonic() - begin
        try:
            status = _announce(settings, max(0.0, seconds - passed))
        except Unavailable as error:
            return f"not announced: {error.text}"
        if passed >= seconds or (not status.waiting and passed >= limits.LEAVE_SECONDS_MIN):
            return f"after {passed:.1f} s: {status.text}"
        time.sleep(limits.LEAVE_LOOK_SECONDS)


def _announce(settings: Settings, seconds: float) -> StopStatus:
    """Raise Unavailable when the member does not answer as expected."""
    place = f"{settings.local_host}:{settings.admin_port}"
    connection = HTTPConnection(
        settings.local_host, settings.admin_port, timeout=limits.LEAVE_ANSWER_SECONDS_MAX
    )
    try:
        # A member that has started meanwhile has another one.
        shown = pod_token.headers(pod_token.read(settings.data_dir))
        connection.request("POST", "/v1/stopping", msgspec.json.encode(StoppingRequest(seconds)), shown)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise Unavailable(f"{place}: {response.status}: {answer.decode(errors='replace').strip()}")
        return msgspec.json.decode(answer, type=StopStatus)
    except (OSError, HTTPException, *UNREADABLE) as error:
        raise Unavailable(f"{place}: {error}") from error
    finally:
        connection.close()
