"""What several test files share: the command, run in this process."""

import sys

import pytest

from copilot_insights.cli import main


@pytest.fixture
def cli(monkeypatch, capsys):
    """Exit code, standard output and standard error of `copilot-insights WORDS`."""

    def run(*words, width=120):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "argv", ["copilot-insights", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    return run
