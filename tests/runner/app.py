"""The runner's commands alone: what the tests start until, and beside, the whole tool."""

import sys

import typer

from copilot_insights.errors import InsightsError
from copilot_insights.runner.commands import register

app = typer.Typer(no_args_is_help=True)
register(app)

if __name__ == "__main__":
    try:
        app()
    except InsightsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
