"""The official SDK (PyPI github-copilot-sdk) drives our server as if it were the CLI."""

import asyncio
import time
from typing import Any

import pytest

from tests.runner.shapes import assert_same_shape, read
from tests.runner.support import REAL, close_pipes, write_executable, write_scripts

pytest.importorskip("copilot", reason="github-copilot-sdk is not installed")

from copilot import CopilotClient, RuntimeConnection
from copilot.session import PermissionHandler
from copilot.session_events import SessionEvent
from copilot.tools import Tool, ToolResult


class Seen(list[Any]):
    """The events that a session's subscriber saw."""

    def types(self):
        return [event.type.value for event in self if event.type.value != "unknown"]

    async def until(self, kind, seconds=10):
        deadline = time.monotonic() + seconds
        while not any(event.type.value == kind for event in self):
            assert time.monotonic() < deadline, f"no {kind} in {self.types()}"
            await asyncio.sleep(0.01)


@pytest.fixture
def drive(tmp_path, shop, clean_environment, caplog):
    """Runs `scenario(client, create)` against a server of its own."""
    executable = write_executable(tmp_path, "serve", "--script", write_scripts(tmp_path, 0.05))

    def drive_(scenario, *, tcp=False):
        async def main():
            make = RuntimeConnection.for_tcp if tcp else RuntimeConnection.for_stdio
            client = CopilotClient(
                connection=make(path=str(executable)),
                base_directory=str(tmp_path / "home"),
                working_directory=str(shop),
                env=clean_environment,
            )
            await client.start()

            async def create(**options):
                options = {"on_permission_request": PermissionHandler.approve_all} | options
                session = await client.create_session(
                    model="mock-model", streaming=True, working_directory=str(shop), **options
                )
                seen = Seen()
                session.on(seen.append)
                return session, seen

            try:
                return await asyncio.wait_for(scenario(client, create), 60)
            finally:
                await close_pipes(client)

        result = asyncio.run(main())
        # An event that the SDK cannot parse is only logged, by the event loop.
        assert "Exception in callback" not in caplog.text
        return result

    return drive_


def log_of(tmp_path, session_id):
    return tmp_path / "home" / "session-state" / session_id / "events.jsonl"


def custom_tools():
    def lookup(invocation):
        return ToolResult(
            text_result_for_llm=f"order {invocation.arguments['order_id']}: on its way"
        )

    def broken(_):
        raise ValueError("no such order")

    order = {"type": "object", "properties": {"order_id": {"type": "string"}}}
    return [
        Tool(
            name="lookup_order", description="Looks an order up", handler=lookup, parameters=order
        ),
        Tool(name="broken_tool", description="Always fails", handler=broken),
    ]


def test_a_session_with_everything_has_the_shape_of_the_clis(drive, tmp_path, shop):
    """The recorded SDK session: custom tools, an error, an abort, a queue, a resume with hooks."""

    def pre_tool_use(data, _):
        if data["toolName"] == "bash":
            return {"permissionDecision": "deny", "permissionDecisionReason": "no shell here"}
        if data["toolName"] == "view":
            path = str(shop / "a.py")
            return {"permissionDecision": "allow", "modifiedArgs": {"path": path}}
        return None

    hooks = {
        "on_pre_tool_use": pre_tool_use,
        "on_post_tool_use": lambda *_: {"additionalContext": "noted"},
        "on_user_prompt_submitted": lambda d, _: {"modifiedPrompt": d["prompt"] + " (please)"},
    }

    async def scenario(client, create):
        session, seen = await create(tools=custom_tools())
        reply = await session.send_and_wait("[[script:custom]] go")
        assert reply.data.content == "Order A1 is on its way."
        with pytest.raises(Exception, match="400 boom"):
            await session.send_and_wait("[[error]] go")
        seen.clear()
        await session.send("[[script:slow]] go")
        await seen.until("permission.completed")
        await session.abort()
        assert seen[-1].data.aborted
        assert seen.types()[-3:] == ["assistant.turn_end", "assistant.idle", "session.idle"]
        seen.clear()
        await session.send("[[script:hello]] one")
        await session.send("[[script:hello]] two")
        await seen.until("session.idle")
        assert seen.types().count("session.idle") == 1
        session_id = session.session_id
        await session.disconnect()

        session = await client.resume_session(
            session_id,
            model="mock-model",
            hooks=hooks,
            streaming=True,
            working_directory=str(shop),
            on_permission_request=PermissionHandler.approve_all,
        )
        reply = await session.send_and_wait("[[script:mixed]] go")
        assert reply.data.content == "Finished mixed."
        await session.disconnect()
        return session_id

    events = read(log_of(tmp_path, drive(scenario)))
    assert_same_shape(events, read(REAL / "1.0.102" / "sdk" / "events.jsonl"))
    for event in events:
        SessionEvent.from_dict(event)
    message = [e["data"] for e in events if e["type"] == "user.message"][-2]
    assert message["content"] == "[[script:mixed]] go"
    assert message["transformedContent"].endswith("[[script:mixed]] go (please)")


def test_streaming_reaches_subscribers_and_never_the_disk(drive, tmp_path):
    async def scenario(_, create):
        session, seen = await create()
        await session.send_and_wait("[[script:tools]] go")
        persisted = await session.get_events()
        return session.session_id, seen, persisted

    session_id, seen, persisted = drive(scenario)
    live = set(seen.types())
    assert {"assistant.message_delta", "assistant.tool_call_delta", "assistant.usage"} <= live
    assert {"session.idle", "assistant.idle", "pending_messages.modified"} <= live
    on_disk = read(log_of(tmp_path, session_id))
    assert not any(event.get("ephemeral") for event in on_disk)
    assert [str(event.id) for event in persisted] == [e["id"] for e in on_disk[:-1]]
    said = "".join(e.data.delta_content for e in seen if e.type.value == "assistant.message_delta")
    assert said.startswith("Looking around.")


def test_a_rejected_permission_is_told_to_the_model(drive, tmp_path):
    from copilot.generated.rpc import PermissionDecisionReject  # noqa: PLC0415

    async def scenario(_, create):
        def reject(*_):
            return PermissionDecisionReject(feedback="not now")

        session, _ = await create(on_permission_request=reject)
        await session.send_and_wait("[[script:tools]] go")
        return session.session_id

    events = read(log_of(tmp_path, drive(scenario)))
    outcomes = {e["data"]["result"]["kind"] for e in events if e["type"] == "permission.completed"}
    assert outcomes == {"denied-interactively-by-user"}
    completed = [e["data"] for e in events if e["type"] == "tool.execution_complete"]
    assert len(completed) == 5
    assert {data["error"]["code"] for data in completed} == {"denied"}
    assert all("not now" in data["error"]["message"] for data in completed)


def test_autopilot_options_limit_the_nudges(drive, tmp_path):
    async def scenario(client, create):
        session, seen = await create(autopilot={"max_continues": 2})
        params = {"sessionId": session.session_id, "mode": "autopilot"}
        await client._client.request("session.mode.set", params)  # noqa: SLF001
        reply = await session.send_and_wait("[[script:never]] go")
        assert reply.data.content == "Stop."
        await seen.until("session.idle")
        [stopped] = [e for e in seen if e.type.value == "session.autopilot_stopped"]
        assert stopped.data.reason == "cap_reached"
        seen.clear()
        await session.send_and_wait("[[script:nudge]] go")
        [stopped] = [e for e in seen if e.type.value == "session.autopilot_stopped"]
        assert stopped.data.reason == "task_complete"
        return session.session_id

    events = read(log_of(tmp_path, drive(scenario)))
    nudges = [e for e in events if e["data"].get("isAutopilotContinuation")]
    assert len(nudges) == 2 + 1


def test_an_autopilot_message_in_an_interactive_session_is_not_nudged(drive, tmp_path):
    async def scenario(_, create):
        session, seen = await create()
        await session.send_and_wait("[[script:nudge]] go", agent_mode="autopilot")
        assert seen[-1].data.mode.value == "interactive"
        return session.session_id

    events = read(log_of(tmp_path, drive(scenario)))
    assert sum(e["type"] == "user.message" for e in events) == 1
    assert sum(e["type"] == "session.mode_notice_delivered" for e in events) == 1


def test_sessions_are_listed_described_and_deleted(drive, tmp_path, shop):
    async def scenario(client, create):
        first, _ = await create()
        await first.send_and_wait("[[script:hello]] first")
        second, _ = await create()
        await second.send_and_wait("[[script:hello]] second")
        listed = await client.list_sessions()
        assert {s.session_id for s in listed} == {first.session_id, second.session_id}
        assert {s.summary for s in listed} == {"[[script:hello]] first", "[[script:hello]] second"}
        assert await client.get_last_session_id() == second.session_id
        metadata = await client.get_session_metadata(first.session_id)
        assert metadata.context.working_directory == str(shop)
        await client.delete_session(first.session_id)
        assert [s.session_id for s in await client.list_sessions()] == [second.session_id]
        assert await client.get_session_metadata(first.session_id) is None
        with pytest.raises(Exception, match="Session not found: no-such-session"):
            await client.resume_session("no-such-session", model="mock-model")
        return first.session_id

    assert not log_of(tmp_path, drive(scenario)).parent.exists()


def test_two_sessions_go_side_by_side(drive, tmp_path):
    async def scenario(_, create):
        (one, seen_one), (two, seen_two) = await create(), await create()
        await asyncio.gather(
            one.send_and_wait("[[script:parallel]] go"), two.send_and_wait("[[script:sub2]] go")
        )
        assert "subagent.started" in seen_two.types()
        assert "subagent.started" not in seen_one.types()
        return one.session_id, two.session_id

    for session_id, name in zip(drive(scenario), ("parallel", "sub2"), strict=True):
        asked = ("permission.requested", "permission.completed")  # as the real run was not
        ours = [e for e in read(log_of(tmp_path, session_id)) if e["type"] not in asked]
        assert_same_shape(ours, read(REAL / "1.0.102" / name / "events.jsonl"))


def test_the_sdk_speaks_to_it_over_tcp(drive):
    async def scenario(client, create):
        assert (await client.get_status()).protocol_version == 3
        assert (await client.ping("you")).message == "pong: you"
        assert [model.id for model in await client.list_models()] == ["scripted"]
        session, _ = await create()
        reply = await session.send_and_wait("[[script:hello]] go")
        return reply.data.content

    assert drive(scenario, tcp=True) == "Hello there, done."


def test_send_and_wait_stops_waiting_and_the_work_goes_on(drive, tmp_path):
    async def scenario(_, create):
        session, seen = await create()
        with pytest.raises(TimeoutError):
            await session.send_and_wait("[[script:parallel]] go", timeout=0.1)
        await seen.until("session.idle")
        return session.session_id

    events = read(log_of(tmp_path, drive(scenario)))
    assert events[-2]["type"] == "assistant.turn_end"
    assert sum(e["type"] == "tool.execution_complete" for e in events) == 5
