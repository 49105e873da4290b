import asyncio
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # importlib mode does not: for `tests.runner.support`

from copilot_insights.errors import InsightsError  # noqa: E402
from copilot_insights.runner.permissions import Policy  # noqa: E402
from copilot_insights.runner.scripts import ScriptedModel, load_scripts  # noqa: E402
from copilot_insights.runner.session import Session, Settings  # noqa: E402
from tests.runner.support import SCRIPTS, command, write_scripts  # noqa: E402


@pytest.fixture
def shop(tmp_path):
    """The directory in which the real logs were made: one file, a git repository."""
    directory = tmp_path / "shop"
    directory.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "master"], cwd=directory, check=True)
    (directory / "a.py").write_text("def f():\n    return 1\n\nprint(f())\n", encoding="utf-8")
    return directory


@pytest.fixture
def clean_environment(tmp_path):
    """No model and no CLI setting of whoever runs the tests; a home of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COPILOT_", "OPENAI_"))}
    return kept | {"HOME": str(tmp_path), "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def run(tmp_path, shop, clean_environment):
    """`copilot-insights run` with the scripts of the real logs; the finished process."""

    def run_(prompt, *options, script=SCRIPTS, timeout=60, check=True):
        arguments = ["--cwd", shop, "--home", tmp_path / "home", "--script", script, *options]
        return subprocess.run(
            command("run", prompt, *arguments),
            env=clean_environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
        )

    return run_


@pytest.fixture
def log(tmp_path):
    """The path of the only log there is."""

    def log_():
        [path] = (tmp_path / "home" / "session-state").glob("*/events.jsonl")
        return path

    return log_


@pytest.fixture
def play(tmp_path, shop):
    """`play(prompt, **settings)`: the session and all its events, ephemeral ones too."""

    def play_(*prompts, then=None, delay=0.0, **changes):
        async def main():
            model = ScriptedModel(load_scripts(write_scripts(tmp_path, delay)))
            settings = Settings(tmp_path / "home", shop, model, policy=Policy(allow_all=True))
            session = Session.create(dataclasses.replace(settings, **changes))
            seen = list(session.log.events)
            session.on(seen.append)
            for prompt in prompts:
                try:
                    await session.send_and_wait(prompt, 20)
                except InsightsError as error:
                    seen.append({"type": "raised", "data": {"message": str(error)}})
            if then:
                await then(session)
            await session.shutdown()
            return session, seen

        return asyncio.run(main())

    return play_
