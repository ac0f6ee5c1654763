"""Limits of the page's server."""

MOVES_SHOWN_MAX = 1_000
"""Running migrations in one document."""

SESSIONS_SHOWN_MAX = 200
"""Running copies in one document."""

PLANS_SHOWN_MAX = 30
"""Plans in one document."""

REFUSALS_SHOWN_MAX = 5
"""Refusals of one plan in one document."""

VIEW_SECONDS = 0.2
"""Seconds for which a document serves all that ask for the same: several pages cost little more than one."""

VIEWS_MAX = 16
"""Documents that are kept for that."""

EXPLAINING_MAX = 4
"""Requests for an explanation at a time, all but one of which wait; beyond it they get 503."""

FACTS_SHOWN_MAX = 200
"""Sentences of one explanation."""
