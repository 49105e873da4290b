"""Fifty sessions at once in one server, and what the loop itself costs."""

import asyncio
import re
import subprocess
import time

from copilot_insights.runner.client import CopilotClient
from copilot_insights.runner.log import read_events
from copilot_insights.runner.permissions import Policy
from copilot_insights.runner.scripts import ScriptedModel, load_scripts
from copilot_insights.runner.session import Session, Settings
from copilot_insights.runner.tools import Tool, ToolResult
from tests.runner.support import command, write_scripts

SESSIONS = 50


def test_fifty_sessions_lose_and_swap_no_event(tmp_path, shop, clean_environment, capsys):
    arguments = ["--home", tmp_path / "home", "--script", write_scripts(tmp_path), "--allow-all"]
    server = subprocess.Popen(
        command("serve", "--port", 0, *arguments),
        env=clean_environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    port = int(re.search(r"port (\d+)", server.stdout.readline())[1])

    async def one(number):
        async with CopilotClient(port=port) as client:
            session = await client.create_session(working_directory=shop)
            seen = []
            session.on(seen.append)
            for script in ("nudge", "sub2", "fail"):
                await session.send_and_wait(f"[[script:{script}]] {number}", timeout=120)
            return session.session_id, seen, await session.get_events()

    async def main():
        return await asyncio.gather(*(one(number) for number in range(SESSIONS)))

    started = time.monotonic()
    results = asyncio.run(main())
    seconds = time.monotonic() - started
    server.terminate()
    server.wait(timeout=10)
    server.stdout.close()

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
        print(f"\n{SESSIONS} sessions, {total} events in {seconds:.1f} s: {total / seconds:.0f}/s")


def test_a_turn_costs_less_than_two_milliseconds(tmp_path, capsys):
    """A hundred turns with one tool each, beside the same model calls in a bare loop."""
    turns = 100
    step = {"text": "On.", "tools": [{"name": "noop", "arguments": {"n": 0}}]}
    scripts = load_scripts("demo")
    scripts = {"x": [type(scripts["demo"][0])(**step_of(step, n)) for n in range(turns)]}

    async def run(context, arguments):
        return ToolResult("ok")

    noop = Tool("noop", "", {"type": "object"}, run, "none")
    model = ScriptedModel(scripts)

    async def bare():
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "go"}]
        started = time.perf_counter()
        for _ in range(turns):
            reply = await model.reply(messages, [], lambda _: None)
            messages.append({"role": "assistant", "content": reply.text})
            messages.append({"role": "tool", "content": "ok"})
        return time.perf_counter() - started

    async def loop():
        settings = Settings(tmp_path, tmp_path, model, policy=Policy(allow_all=True), tools=[noop])
        session = Session.create(settings)
        started = time.perf_counter()
        await session.send_and_wait("go")
        seconds = time.perf_counter() - started
        await session.shutdown()
        return seconds

    plain = min(asyncio.run(bare()) for _ in range(3))
    whole = min(asyncio.run(loop()) for _ in range(3))
    overhead = (whole - plain) / turns * 1000
    with capsys.disabled():
        print(
            f"\nthe loop's own cost: {overhead:.2f} ms a turn ({whole:.3f} s beside {plain:.3f} s)"
        )
    assert overhead < 2


def step_of(step, number):
    from copilot_insights.runner.scripts import ScriptedCall  # noqa: PLC0415

    return {"text": step["text"], "tools": [ScriptedCall("noop", {"n": number})]}
