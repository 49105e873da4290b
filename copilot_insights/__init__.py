"""Numbers you can trust from the session logs of the GitHub Copilot CLI.

`load(paths)` reads logs into `Tables`, a bundle of polars frames; everything else
(reports, the command line) is made from these. Importing this package is cheap:
polars is imported on the first use of a name below.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from copilot_insights.errors import InsightsError
    from copilot_insights.loading import load
    from copilot_insights.tables import Tables

__version__ = "0.1.0"
__all__ = ["InsightsError", "Tables", "__version__", "load"]

_HOME = {
    "InsightsError": "copilot_insights.errors",
    "Tables": "copilot_insights.tables",
    "load": "copilot_insights.loading",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  (PEP 562)
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
