"""Where the tests find things, and how they start the commands."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
REAL = HERE.parent / "data" / "real_logs"
SCRIPTS = REAL / "scripts.json"


def command(*arguments):
    """The command line that starts the runner's commands."""
    return [sys.executable, str(HERE / "app.py"), *map(str, arguments)]
