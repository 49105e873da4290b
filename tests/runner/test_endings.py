"""However a prompt ends, and whatever others raise: idle follows, and the next prompt runs."""

import asyncio

import pytest

from copilot_insights.errors import InsightsError
from copilot_insights.runner.client import ClientTool, CopilotClient
from copilot_insights.runner.hooks import HOOK_TYPES
from copilot_insights.runner.permissions import Policy
from copilot_insights.runner.scripts import ScriptedModel, load_scripts
from copilot_insights.runner.tools import Tool
from tests.runner.shapes import read
from tests.runner.support import hooks, listening, of, types, write_scripts


class Stop(BaseException):
    """What no `except Exception` catches."""


WAYS_OUT = [SystemExit, asyncio.CancelledError, Stop, RecursionError]
each_way_out = pytest.mark.parametrize("way_out", WAYS_OUT)


@pytest.fixture
def server(tmp_path, clean_environment):
    arguments = ["--home", tmp_path / "home", "--script", write_scripts(tmp_path)]
    with listening(clean_environment, "serve", "--port", 0, *arguments) as port:
        yield port


def test_an_abort_straight_after_a_prompt_leads_to_idle(play):
    async def then(session):
        session.send("[[script:hello]] never")
        await session.abort()
        assert not session.worker.busy
        assert await session.send_and_wait("[[script:hello]] after", 10) == "Hello there, done."

    session, seen = play(then=then)
    assert [data.get("aborted") for data in of("session.idle", seen)] == [True, None]
    texts = [data["content"] for data in of("user.message", session.log.events)]
    assert texts == ["[[script:hello]] after"]


def test_a_prompt_that_comes_while_an_abort_is_under_way_runs(play):
    async def then(session):
        started = asyncio.Event()
        session.on(lambda e: started.set() if e["type"] == "tool.execution_start" else None)
        session.send("[[script:slow]] go")
        await started.wait()
        aborting = asyncio.create_task(session.abort())
        session.on(lambda e: e["type"] == "abort" and session.send("[[script:hello]] after"))
        await aborting
        await session.worker.finish()

    session, seen = play(then=then)
    texts = [data["content"] for data in of("user.message", session.log.events)]
    assert texts == ["[[script:slow]] go", "[[script:hello]] after"]
    assert [data.get("aborted") for data in of("session.idle", seen)] == [True, None]


@pytest.mark.parametrize("kind", ["assistant.idle", "session.idle"])
def test_a_prompt_sent_when_idle_is_said_runs(play, kind):
    async def then(session):
        def once_more(event):
            if event["type"] == kind:
                stop()
                session.send("[[script:hello]] again")

        stop = session.on(once_more)
        session.send("[[script:hello]] go")
        await session.worker.finish()

    session, seen = play(then=then)
    assert len(of("user.message", session.log.events)) == 2
    assert types(seen)[-2:] == ["session.idle", "session.shutdown"]


def test_a_client_that_sends_when_idle_is_said_is_answered(server, shop):
    async def main():
        async with CopilotClient(port=server) as client:
            session = await client.create_session(working_directory=shop)
            sending, twice = [], asyncio.Event()

            def once_more(event):
                if event["type"] == "session.idle":
                    if sending:
                        twice.set()
                    else:
                        sending.append(asyncio.create_task(session.send("[[script:hello]] again")))

            session.on(once_more)
            await session.send("[[script:hello]] go")
            await asyncio.wait_for(twice.wait(), 20)
            return await session.get_events()

    assert len(of("user.message", asyncio.run(main()))) == 2


def raising(way_out):
    async def later(*_):
        raise way_out("out")

    def at_once(*_):
        raise way_out("out")

    return at_once, later


@each_way_out
@pytest.mark.parametrize("kind", HOOK_TYPES)
def test_no_hook_ends_more_than_itself(play, kind, way_out):
    for hook in raising(way_out):
        prompts = ("[[script:sub]] go", "[[script:fail]] go", "[[error]] go")
        _, seen = play(*prompts, hooks=hooks(**{kind: hook}))
        assert types(seen).count("session.idle") == 3
        assert types(seen)[-1] == "session.shutdown"
        ends = of("hook.end", seen)
        assert ends
        assert {end["success"] for end in ends} == {False}


@each_way_out
def test_no_tool_ends_more_than_its_call(play, way_out):
    for run in raising(way_out):
        tool = Tool("glob", "Finds", {"type": "object", "properties": {}}, run, "none")
        session, seen = play("[[script:sub]] go", tools=[tool])
        assert types(seen).count("session.idle") == 1
        failed = [d for d in of("tool.execution_complete", session.log.events) if not d["success"]]
        assert [data["error"]["code"] for data in failed] == ["failure"]
        assert of("assistant.message", seen)[-1]["content"] == "Sub agent told me. Done."


@each_way_out
def test_who_decides_on_permissions_and_fails_has_decided_nothing(play, way_out):
    for ask in (*raising(way_out), lambda _: "yes"):
        session, seen = play("[[script:tools]] go", policy=Policy(ask=ask))
        asked = len(of("permission.requested", session.log.events))
        outcomes = of("permission.completed", session.log.events)
        assert asked == len(outcomes) > 0
        assert {data["decisionSource"] for data in outcomes} == {"unattended_fallback"}
        assert types(seen).count("session.idle") == 1


@each_way_out
def test_no_model_and_no_subscriber_ends_the_session(play, tmp_path, way_out):
    class Breaks(ScriptedModel):
        async def reply(self, *_):
            raise way_out("out")

    async def then(session):
        stop = session.on(raising(way_out)[0])
        with pytest.raises(InsightsError, match="out"):
            await session.send_and_wait("[[script:hello]] go", 10)
        stop()

    _, seen = play(then=then, model=Breaks(load_scripts(write_scripts(tmp_path))))
    assert types(seen)[-2:] == ["session.idle", "session.shutdown"]


def test_a_hook_cannot_change_what_the_log_says_it_was_given(play):
    def scribble(data):
        data["toolArgs"] = data
        data["toolCalls"] = data

    session, _ = play("[[script:sub]] go", hooks=hooks(preToolUse=scribble, postToolUse=scribble))
    assert all(data["success"] for data in of("tool.execution_complete", session.log.events))
    assert session.get_events() == read(session.log.path)


@each_way_out
def test_a_clients_handlers_end_nothing_but_themselves(server, shop, way_out):
    """A tool, a permission and a hook of a client that raise, or answer what is no JSON."""

    async def main():
        async with CopilotClient(port=server) as client:
            for at_once, later, no_json in [(*raising(way_out), lambda _: {"kind": {1}})]:
                for handler in (at_once, later, no_json):
                    session = await client.create_session(
                        working_directory=shop,
                        tools=[ClientTool("lookup_order", "Looks up", handler)],
                        on_permission_request=handler,
                        hooks={"preToolUse": handler, "agentStop": handler},
                    )
                    session.on(at_once)
                    reply = await session.send_and_wait("[[script:custom]] go", 20)
                    assert reply
                    assert reply["data"]["content"] == "Order A1 is on its way."

    asyncio.run(main())
