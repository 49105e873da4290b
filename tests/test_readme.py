"""The README shows what the tool prints: each console block is run and compared.

UPDATE_README=1 writes the real output into it.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n\$ copilot-insights ([^\n]*)\n(.*?)```", re.DOTALL)


def output(arguments):
    done = subprocess.run(
        [sys.executable, "-m", "copilot_insights.cli", *shlex.split(arguments)],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "TZ": "UTC", "NO_COLOR": "1"},
        check=False,
    )
    return (done.stdout + done.stderr).decode()


BLOCKS = [m.groups() for m in BLOCK.finditer(README.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("arguments", "shown"), BLOCKS, ids=[a for a, _ in BLOCKS])
def test_the_readme_shows_what_is_printed(arguments, shown):
    got = output(arguments)
    if os.environ.get("UPDATE_README"):
        text = README.read_text(encoding="utf-8")
        block = f"$ copilot-insights {arguments}\n"
        README.write_text(text.replace(block + shown, block + got), encoding="utf-8")
        shown = got
    assert shown == got


@pytest.mark.parametrize(
    "code", re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
)
def test_the_python_examples_run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True)
    assert done.stdout


def test_what_is_run_first_is_what_the_readme_says():
    text = README.read_text(encoding="utf-8")
    assert "./check" in text
    assert "./check" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
