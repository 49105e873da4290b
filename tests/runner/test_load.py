"""Fifty sessions at once in one server, and what the loop itself costs."""

import asyncio
import json
import sys
import time

from copilot_insights.runner.client import CopilotClient
from copilot_insights.runner.log import Event, read_events
from copilot_insights.runner.permissions import Policy
from copilot_insights.runner.scripts import ScriptedCall, ScriptedModel, Step
from copilot_insights.runner.session import Session, Settings
from copilot_insights.runner.tools import Tool, ToolResult
from tests.runner.shapes import read
from tests.runner.support import listening, write_scripts

SESSIONS = 50


def test_fifty_sessions_lose_and_swap_no_event(tmp_path, shop, clean_environment, capsys):
    arguments = ["--home", tmp_path / "home", "--script", write_scripts(tmp_path), "--allow-all"]

    async def one(port, number):
        async with CopilotClient(port=port) as client:
            session = await client.create_session(working_directory=shop)
            seen: list[Event] = []
            session.on(seen.append)
            for script in ("nudge", "sub2", "fail"):
                await session.send_and_wait(f"[[script:{script}]] {number}", timeout=120)
            return session.session_id, seen, await session.get_events()

    async def main(port):
        return await asyncio.gather(*(one(port, number) for number in range(SESSIONS)))

    with listening(clean_environment, "serve", "--port", 0, *arguments) as port:
        started = time.monotonic()
        results = asyncio.run(main(port))
        seconds = time.monotonic() - started

    total = 0
    for session_id, seen, events in results:
        path = tmp_path / "home" / "session-state" / session_id / "events.jsonl"
        on_disk, size = read_events(path)
        assert size == path.stat().st_size
        assert [e["id"] for e in events] == [e["id"] for e in on_disk[: len(events)]]
        assert [e["parentId"] for e in on_disk] == [None, *(e["id"] for e in on_disk[:-1])]
        live = [e["id"] for e in seen if not e.get("ephemeral")]
        assert live[: len(events)] == [e["id"] for e in on_disk[: len(live)]][: len(events)]
        assert sum(e["type"] == "session.idle" for e in seen) == 3
        assert len({e["id"] for e in seen}) == len(seen)
        total += len(seen)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{SESSIONS} sessions, {total} events in {seconds:.1f} s: {total / seconds:.0f}/s\n"
        )


def test_a_turn_costs_little_more_than_writing_its_events(tmp_path, capsys):
    """A hundred turns with one tool each, beside a plain loop that calls and writes the same."""
    turns = 100
    steps = [Step("On.", [ScriptedCall("noop", {"n": number})]) for number in range(turns)]

    async def run(*_):
        return ToolResult("ok")

    noop = Tool("noop", "", {"type": "object"}, run, "none")
    model = ScriptedModel({"x": steps})

    async def loop():
        settings = Settings(tmp_path, tmp_path, model, policy=Policy(allow_all=True), tools=[noop])
        session = Session.create(settings)
        started = time.process_time()
        await session.send_and_wait("go")
        seconds = time.process_time() - started
        await session.shutdown()
        return seconds, session.log.path

    async def plain(events):
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "go"}]
        started = time.process_time()
        with (tmp_path / "plain.jsonl").open("w", encoding="utf-8") as file:
            for _ in range(turns):
                reply = await model.reply(messages, [], lambda _: None)
                messages.append({"role": "assistant", "content": reply.text})
                messages.append({"role": "tool", "content": "ok"})
            for event in events:
                file.write(json.dumps(event) + "\n")
                file.flush()
        return time.process_time() - started

    whole, path = min(asyncio.run(loop()) for _ in range(3))
    bare = min(asyncio.run(plain(read(path))) for _ in range(3))
    with capsys.disabled():
        sys.stdout.write(
            f"\nthe loop: {whole / turns * 1000:.2f} ms a turn, {whole / bare:.1f} times plain\n"
        )
    assert whole < 15 * bare
