"""Names of what goes wrong in a run, and of what users do meanwhile."""

FAULTS = (
    "reset a connection",
    "cut one way",
    "cut both ways",
    "isolate a member",
    "hide from the master",
    "swizzle",
    "slow a place",
    "kill a member",
    "kill a member at a step",
    "kill a member at a write",
    "cut the power",
    "keep a member down",
    "pause a member",
    "delete a pod",
    "wipe a volume",
    "flip a bit",
    "flip a bit of a copy",
    "swap volumes",
    "disk errors",
    "slow disk",
    "full disk",
    "a clock jumps",
    "kill the master",
    "kill the master at a step",
    "pause the master",
    "second master",
    "api server away",
    "scale",
    "change replicas",
    "change state",
    "drain a member",
    "cancel the plan",
    "pause migrations",
)
"""What may be begun during a run; `tests.simulation.faults` does it."""

USERS_MOVES = ("scale", "drain a member", "change replicas")
"""What users do that moves partitions, and hurts nobody."""

OF_THE_MASTER = ("kill the master", "kill the master at a step")
"""What befalls the master alone: copies go on meanwhile."""

HAND_OVER = "hand over a member"
"""A user empties a member of ownership, or takes that back."""

CHANGE_ROLE = "change a role"
"""A user makes a member lite, or a data member again."""

CHANGE_DETECTION = "change failure detection"
"""Heartbeats and leases become longer or shorter while members run."""

MOVES = ("move partitions", "cancel moves")
"""Users name replicas to move, and change their minds."""

DECLARE = "declare a keyspace"
"""Users declare keyspaces, change their settings, and delete them."""

STRIKES = ("strike a hand-over", "strike an arrival")
"""Several faults together, at a moment that is short."""

STRIKE_TRANSACTION = "strike a transaction"
"""What runs one stops or dies as soon as a part is prepared, or another member does."""

STOPS = (
    "delete a pod by force",
    "lose a node",
    "delete a pod, kill the others",
    "cut the power of a stopping member",
)
"""Pods that go in other ways than a plain deletion."""

PLANNED_STOP = "stop as planned"
"""A pod is deleted, and its hook lets the member ask the master to move everything off it."""

NODES = ("delete a node", "take a node out of service", "cut a node off", "replace a member")
"""Nodes are lost, and users decide what becomes of members there."""

QUARANTINE = (
    "restore from quarantine",
    "purge from quarantine",
    "accept a copy",
    "change what a loss does",
)
"""Users look after what was deleted, and after what is lost."""

UPDATES = ("change the pods", "change the update strategy")
"""Users change what a member's pod is made of, and how members become so."""

UPGRADES = ("upgrade the operator", "upgrade a member", "roll a member back")
"""Builds of the format before are replaced, and some of them come back for a while."""

ENDINGS = ("stay dead", "stay frozen", "stay cut off", "lower members by who stays away")
"""What becomes of a member that stays away when the faults are over, and what the user does about it."""

ISOLATE_TWO = "isolate two members"
"""An owner and a backup are cut off together: each goes on hearing the other."""

STOP_ALONE = "stop a member alone"
"""A member stops for a while, and cannot be reached from then until some time after it goes on."""

SLOW_LINK = "slow a link"
"""What one member sends to another takes longer; the master, and clients, hear both as always."""

BEGUN = (
    *FAULTS,
    HAND_OVER,
    CHANGE_ROLE,
    CHANGE_DETECTION,
    DECLARE,
    PLANNED_STOP,
    ISOLATE_TWO,
    STOP_ALONE,
    *MOVES,
    *STRIKES,
    STRIKE_TRANSACTION,
    *STOPS,
    *NODES,
    *QUARANTINE,
    *UPDATES,
    *UPGRADES,
    SLOW_LINK,
)
"""All that `tests.simulation.faults` can begin."""

HALTS = ("change state", "pause migrations", "cancel the plan")
"""What users do after which nothing moves for long."""

RATES = {
    "message lost": 0.05,
    "message late": 0.03,
    "message repeated": 0.05,
    "segment torn": 0.1,
    "api request lost": 0.03,
    "api answer lost": 0.03,
    "api refused": 0.03,
    "api conflict": 0.02,
    "watch event lost": 0.1,
    "watch event repeated": 0.1,
    "watch late": 1.0,
    "clock drift": 0.02,
    "copy late": 0.5,
}
"""What goes on all the time: the greatest part of all messages, requests or events that it happens to."""
