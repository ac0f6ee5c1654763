"""One seed: first anything may happen, then faults end and everything has to become well."""

from collections import Counter
from dataclasses import dataclass, field

from stele.core.kv.two_phase import ASK_LIVE_SECONDS
from tests.fakes.network import LATE_SECONDS_MAX
from tests.simulation import lossy
from tests.simulation.convergence import TRANSACTIONS_END, check_equal, unended, unfinished
from tests.simulation.families.registry import draw
from tests.simulation.families.swarm import SWARM
from tests.simulation.faults import RECONSIDERED_SECONDS, Faults
from tests.simulation.group_clients import check_own
from tests.simulation.history import LINEARIZABLE, Loss, Operation, Violation, check
from tests.simulation.invariants import Rules
from tests.simulation.profile import Profile
from tests.simulation.recoveries import Recovery
from tests.simulation.resp_subscribers import RespSubscribers
from tests.simulation.subscribers import DEPARTED_ONCE, HEARD
from tests.simulation.trace import ANYWHERE
from tests.simulation.world import World

CONVERGE_SECONDS = 150.0
"""Simulated time after the last fault within which everything is well."""
WELL_AGAIN = "safe, balanced and at rest in the end"
LAST_READS = "all keys can be read in the end"
ENDED_SECONDS = ASK_LIVE_SECONDS + 20.0
"""Simulated time after the last transaction within which all are over, and their outcomes forgotten."""
LOOK_SECONDS = 1.0
QUIET_SECONDS = 3.0


@dataclass
class Result:
    """What became of a run. `failure` is empty when all was well; else `rule` names what was broken."""

    seed: int
    failure: str = ""
    rule: str = ""
    story: list[str] = field(default_factory=list)
    digest: str = ""
    steps: int = 0
    messages: int = 0
    seconds: float = 0.0
    acknowledged: int = 0
    unknown: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    covered: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)


def run(seed: int, family: str = SWARM) -> Result:
    """The seed's profile of that family; see `run_profile`."""
    return run_profile(draw(seed, family))


def run_profile(profile: Profile) -> Result:
    """Never raises for a find: it is in the result."""
    result = Result(profile.seed)
    with profile.turned(), World(profile) as world:
        try:
            _both_phases(world)
        except (Violation, Exception) as error:  # noqa: BLE001  whatever it is, it is a find
            result.failure = f"{type(error).__name__}: {error}"
            result.rule = error.rule if isinstance(error, Violation) else type(error).__name__
            result.story = world.trace.story(*_concerned(world, error))
        result.digest = world.trace.digest()
        result.steps, result.messages, result.seconds = (
            world.clock.steps,
            world.network.messages,
            world.clock.now,
        )
        result.acknowledged = world.keys.histories.acknowledged
        result.unknown = world.keys.histories.unknown
        result.faults = world.trace.faults + world.network.noticed
        result.covered = world.trace.covered
        result.checked = world.trace.checked
    return result


def _both_phases(world: World) -> None:
    harmed: dict[str, float] = {}
    rules = Rules(world, harmed)
    faults = Faults(world, harmed)
    faults.begin()
    world.clock.run(world.profile.chaos_seconds)
    if world.profile.recovered:
        Recovery(world, rules).run()
    faults.end()
    world.clock.run(world.clock.now + 2 * RECONSIDERED_SECONDS)
    _converge(world)
    if faults.ending.give_up():
        _converge(world)
    for client in world.clients:
        client.active = False
    world.clock.run(max(world.clock.now + QUIET_SECONDS, world.profile.chaos_seconds + LATE_SECONDS_MAX))
    _read_all(world)
    for key, operations in world.keys.histories.by_key.items():
        partition = world.keys.partition(key)
        _check_history(world, key, operations, rules.power.of(partition) + rules.losses.of(partition))
    world.bank.check(world.trace)
    world.lists.check(world.trace, world.keys.partition, world.owners_lost)
    _end_transactions(world)
    check_equal(world)
    check_own(world)
    if world.subscribers is not None:
        world.trace.checked[HEARD] += world.subscribers.check()
        world.trace.checked[DEPARTED_ONCE] += len(world.subscribers.departed)
    if isinstance(world.subscribers, RespSubscribers):
        world.trace.checked += world.subscribers.check_clients(world.expiring_clients)


def _check_history(world: World, key: bytes, operations: list[Operation], losses: list[Loss]) -> None:
    """Without losses when that is enough; else only what was lost may be missing."""
    world.trace.checked[LINEARIZABLE] += 1
    try:
        check(key, operations)
    except Violation:
        if not losses or not lossy.explained(operations, losses):
            raise
        world.trace.cover("acknowledged writes were lost, as is documented")


def _converge(world: World) -> None:
    deadline = world.clock.now + CONVERGE_SECONDS
    wrong = "?"
    while wrong:
        world.clock.run(world.clock.now + LOOK_SECONDS)
        wrong = unfinished(world)
        if wrong and world.clock.now > deadline:
            raise Violation(WELL_AGAIN, f"not well {CONVERGE_SECONDS:g} s after the last fault: {wrong}")
    world.trace.checked[WELL_AGAIN] += 1


def _end_transactions(world: World) -> None:
    """Nobody begins any more: locks go at once or when owners ask, outcomes when nobody can need them."""
    deadline = world.clock.now + ENDED_SECONDS
    while left := unended(world):
        if world.clock.now > deadline:
            raise Violation(TRANSACTIONS_END, f"after {ENDED_SECONDS:g} s: {left}")
        world.clock.run(world.clock.now + LOOK_SECONDS)
    world.clock.run(world.clock.now + QUIET_SECONDS)
    world.trace.checked[TRANSACTIONS_END] += 1


def _read_all(world: World) -> None:
    """Every key once more, with nothing wrong: what was acknowledged is there."""
    client = world.clients[0]
    done = client.read_all(world.present())
    world.clock.run(world.clock.now + QUIET_SECONDS)
    if not done.done():
        raise Violation(LAST_READS, "the last reads were not answered")
    if any(each.end is None for each in done.result()):
        raise Violation(LAST_READS, "the last reads were refused")
    world.trace.checked[LAST_READS] += len(done.result())
    for redis_client in (*world.redis_clients[:1], *world.transfer_clients[:1]):
        audited = redis_client.audit_all(world.present())
        world.clock.run(world.clock.now + QUIET_SECONDS)
        if not audited.done() or not audited.result():
            raise Violation(LAST_READS, "the last transactions were not answered")
    for async_client in world.async_clients[:1]:
        read = async_client.read_lists(world.present())
        world.clock.run(world.clock.now + QUIET_SECONDS)
        if not read.done() or not read.result():
            raise Violation(LAST_READS, "the last reads of Async lists were not answered")
    for group_client in world.group_clients:
        answered = group_client.read_all(world.present())
        world.clock.run(world.clock.now + QUIET_SECONDS)
        if not answered.done() or any(each.end is None for each in answered.result()):
            raise Violation(LAST_READS, "the last reads of a keyspace were not answered")
    for cluster_client in world.cluster_clients[:1]:
        checked = cluster_client.check_at_rest(world.present())
        world.clock.run(world.clock.now + QUIET_SECONDS)
        if not checked.done():
            raise Violation(LAST_READS, "the last reads by the map were not answered")


def _concerned(world: World, error: Exception) -> tuple[int, bytes]:
    """The partition and the key whose story explains it."""
    if isinstance(error, Violation):
        return world.keys.partition(error.key) if error.key else error.partition, error.key
    return ANYWHERE, b""
