"""Options that many commands have."""

from typing import Annotated

import typer

from stele.cli.output import Output

OutputOption = Annotated[
    Output | None,
    typer.Option("-o", "--output", help="Print JSON, YAML, or the table with nothing left out."),
]
