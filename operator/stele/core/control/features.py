"""Which features a cluster can use, and which members lack those in force (docs/internals/formats.md)."""

from stele.core.control.commands import ExchangeReply
from stele.core.control.state import State


def lacking(state: State, report: ExchangeReply) -> str:
    """Return why the build of a member cannot take part, and the remedy; empty when it can."""
    features, formats = state.operations.change.features, report.formats
    if report.features > state.spoken.most:
        text = f"its volume has format {report.features}, this operator speaks {state.spoken}"
        return f"{text}: upgrade the operator"
    if formats.speaks(features):
        return ""
    older = formats.most < features
    remedy = "upgrade it" if older else "upgrade the others first, to a release that is not so far apart"
    return f"its build speaks {formats}, the cluster uses format {features}: {remedy}"


def usable_features(state: State) -> int:
    """Return the highest format that every member has shown to speak in this epoch; at least the present one.

    Silent members of the list count, too, and so do members that are about to join.
    """
    features = state.operations.change.features
    if features >= state.spoken.most or not state.table.formed:
        return features
    if any(state.membership.liveness[index].report is None for index in state.table.members):
        return features
    reports = [each.report for each in state.membership.liveness.values() if each.report is not None]
    return max(features, min([state.spoken.most, *(report.formats.most for report in reports)]))
