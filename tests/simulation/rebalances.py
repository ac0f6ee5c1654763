"""What users ask for in TabletRebalances: moves, hand-overs, and the end of what is under way."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stele.adapters.kubernetes.api import MEMBERS, REBALANCES, Kind
from stele.model import API_VERSION
from tests.simulation.kinds import HAND_OVER
from tests.simulation.profile import CLUSTER

if TYPE_CHECKING:
    from tests.simulation.faults import Faults
    from tests.simulation.world import World

DONE = "moves are done before they are said to be"
FINAL = ("Done", "Failed", "Superseded")
MOVES_MAX = 4

Check = Callable[..., None]
Object = dict[str, Any]


class RebalanceFaults:
    """The part of `faults` of users' TabletRebalances: each says whether it could be done."""

    def __init__(self, faults: "Faults") -> None:
        self.faults, self.world, self.api = faults, faults.world, faults.world.api
        self.todo: dict[str, Callable[[], bool]] = {
            "cancel the plan": self._cancel,
            HAND_OVER: self._hand_over,
            "move partitions": self._move,
            "cancel moves": self._cancel_moves,
        }

    def end(self) -> None:
        """Nothing is asked for any more: users cancel what they wanted, and delete hand-overs."""
        for each in self.api.list(REBALANCES):
            name, spec = each["metadata"]["name"], each["spec"]
            if spec.get("handover"):
                self.api.delete(REBALANCES, name, None)
            elif spec.get("moves"):
                self.api.change_spec(REBALANCES, name, cancel=True)

    def _member(self) -> str:
        members = self.api.list(MEMBERS)
        return str(self.faults.random.choice(members)["metadata"]["name"]) if members else ""

    def _create(self, name: str, **spec: Any) -> bool:
        meta = {
            "name": f"{name}-{self.faults.number}",
            "namespace": self.world.cluster["metadata"]["namespace"],
        }
        body = {"apiVersion": API_VERSION, "kind": "TabletRebalance", "metadata": meta}
        self.api.create(REBALANCES, body | {"spec": {"cluster": CLUSTER} | spec})
        return self.faults.say(f"the user asks for {spec}", "user")

    def _hand_over(self) -> bool:
        """A user empties a member of ownership, or lets it own partitions again."""
        name = self._member()
        asked = [each for each in self.api.list(REBALANCES) if each["spec"].get("handover")]
        if not name or (asked and self.faults.random.random() < 0.4):
            for each in asked:
                self.api.delete(REBALANCES, each["metadata"]["name"], None)
            return bool(asked) and self.faults.say("the user undoes hand-overs", "user")
        to = self._member()
        other = {"to": to} if to != name and self.faults.random.random() < 0.3 else {}
        return self._create("hand-over", handover={"member": name} | other)

    def _move(self) -> bool:
        """Some replicas to other members; now and then one that nobody can carry out."""
        random, rows = self.faults.random, self.world.rows()
        if not rows or not self._member():
            return False
        numbers = random.sample(range(len(rows)), random.randint(1, min(MOVES_MAX, len(rows))))
        return self._create("moves", moves=[self._one_move(number) for number in numbers])

    def _one_move(self, number: int) -> Object:
        holders = [f"{CLUSTER}-{index}" for index in sorted(self.world.rows()[number].members)]
        source, to = self.faults.random.choice(holders or [self._member()]), self._member()
        ends = {"to": to} if source == to or self.faults.random.random() < 0.1 else {"from": source, "to": to}
        return {"partition": number} | ends

    def _cancel_moves(self) -> bool:
        """All of a plan of users, with or without a way back, or a part; or its object is deleted."""
        asked = [each for each in self.api.list(REBALANCES) if each["spec"].get("moves")]
        asked = [each for each in asked if (each.get("status") or {}).get("phase") not in FINAL]
        if not asked:
            return False
        chosen = self.faults.random.choice(asked)
        name, first = chosen["metadata"]["name"], chosen["spec"]["moves"][0]["partition"]
        how = self.faults.random.choice(
            ({"cancel": True}, {"cancel": True, "rollBack": True}, {"cancelMigrations": [first]}, {})
        )
        if how:
            self.api.change_spec(REBALANCES, name, **how)
        else:
            self.api.delete(REBALANCES, name, None)
        return self.faults.say(f"the user sets {how or 'deletes'}: {name}", "user")

    def _cancel(self) -> bool:
        """The next plan that the operator shows, a moment later."""

        def shown(kind: Kind, stored: Object, gone: bool) -> None:
            if kind is REBALANCES and not gone:
                self.api.changed.remove(shown)
                seconds = self.faults.random.uniform(0.0, 0.5)
                self.faults.later(seconds, self._cancel_now, stored["metadata"]["name"], self.faults.number)

        self.api.changed.append(shown)
        return self.faults.say("the user is about to cancel", "user")

    def _cancel_now(self, name: str, number: int) -> None:
        """With a way back for what is under way, every other time."""
        if not self.faults.over:
            self.world.trace.faults["plan cancelled"] += 1
            self.api.change_spec(REBALANCES, name, cancel=True, rollBack=number % 2 == 0)
            self.faults.say(f"the user cancels {name}", "user")


class UserPlans:
    """A plan of users is Done when each of its moves was in effect at some time since it was made.

    `_open` has the moves that were not, by the name of their plan.
    """

    def __init__(self, world: "World", check: Check) -> None:
        self.world, self._check = world, check
        self._open: dict[str, list[Object]] = {}

    def stored(self, plan: Object) -> None:
        """A TabletRebalance was stored."""
        moves, name = plan["spec"].get("moves"), plan["metadata"]["name"]
        if not moves:
            return
        if name not in self._open:
            self._open[name] = list(moves)
            self.rows()
        phase, spared = (
            (plan.get("status") or {}).get("phase", ""),
            plan["spec"].get("cancelMigrations") or (),
        )
        self.world.trace.cover(f"user's plan {phase}")
        left = [each for each in self._open[name] if each["partition"] not in spared]
        self._check(DONE, phase != "Done" or not left, "{} is said to be done, without {}", name, left)

    def rows(self) -> None:
        """Rows were stored."""
        names = {index: member.name for index, member in self.world.table().members.items()}
        rows = [{names.get(index) for index in row.members} for row in self.world.rows()]
        for name, moves in self._open.items():
            self._open[name] = [each for each in moves if not _in_effect(each, rows)]


def _in_effect(move: Object, rows: list[set[str | None]]) -> bool:
    row = rows[move["partition"]] if rows else set()
    return move["to"] in row and move.get("from") not in row


def unended(world: "World") -> str:
    """A plan of users that is not at its end; empty when all are."""
    for each in world.api.list(REBALANCES):
        phase = (each.get("status") or {}).get("phase")
        if each["spec"].get("moves") and phase not in FINAL:
            return f"{each['metadata']['name']} is {phase}"
    return ""
