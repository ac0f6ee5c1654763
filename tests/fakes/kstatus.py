"""How kstatus judges an object: the rules that Flux, kpt and `kubectl`'s relatives share.

Written out from the published ones for kinds that kstatus does not know itself: what is being deleted is
Terminating; what was changed since the controller looked is InProgress; then the first condition that is True
of Reconciling and Stalled decides, then Ready; an object without any of them is Current.
"""

from collections.abc import Mapping
from typing import Any


def kstatus(stored: Mapping[str, Any]) -> str:
    meta, status = stored["metadata"], stored.get("status") or {}
    if meta.get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", meta.get("generation")) != meta.get("generation"):
        return "InProgress"
    conditions = status.get("conditions") or ()
    for condition in conditions:
        if condition["type"] == "Reconciling" and condition["status"] == "True":
            return "InProgress"
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return "Failed"
    for condition in conditions:
        if condition["type"] == "Ready":
            return "Current" if condition["status"] == "True" else "InProgress"
    return "Current"
