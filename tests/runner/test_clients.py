"""Our client and the official SDK, in front of our server and of the real CLI: one script.

The real CLI is looked for in $COPILOT_CLI, else as `copilot` on the path; it plays the scripts
of `copilot-insights model`, without an account.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from copilot_insights.errors import InsightsError
from copilot_insights.runner import client
from copilot_insights.runner.client import ClientTool, CopilotClient, approve_all
from tests.runner.shapes import assert_same_shape, read
from tests.runner.support import (
    REAL,
    close_pipes,
    listening,
    vanish,
    write_executable,
    write_scripts,
)

CLI = os.environ.get("COPILOT_CLI") or shutil.which("copilot") or ""
needs_cli = pytest.mark.skipif(not CLI, reason="the Copilot CLI is not installed ($COPILOT_CLI)")


@pytest.fixture
def model_server(tmp_path, clean_environment):
    """`copilot-insights model`: its base URL by label, and the calls that it saw."""
    log = tmp_path / "calls.jsonl"
    arguments = ("model", write_scripts(tmp_path, 0.02), "--log", log)
    with listening(clean_environment, *arguments) as port:

        class Server:
            def url(self, label):
                return f"http://127.0.0.1:{port}/run/{label}/v1"

            def calls(self, label):
                return [call for call in read(log) if call["label"] == label]

        yield Server()


@pytest.fixture
def cli_environment(clean_environment, model_server, tmp_path):
    """The environment in which the real CLI runs offline."""

    def environment(label):
        return clean_environment | {
            "COPILOT_HOME": str(tmp_path / "home"),
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
            "COPILOT_MODEL": "mock-model",
            "COPILOT_PROVIDER_BASE_URL": model_server.url(label),
        }

    return environment


def model_calls(events):
    """Calls that a log gives evidence of: turns, of every agent."""
    return sum(event["type"] == "assistant.turn_start" for event in events)


@needs_cli
@pytest.mark.parametrize(
    ("scenario", "options"),
    [("tools", ()), ("sub2", ()), ("nudge", ("--autopilot",)), ("fail", ())],
)
def test_the_real_cli_runs_on_our_model(
    scenario, options, shop, cli_environment, model_server, log
):
    subprocess.run(
        [CLI, "-p", f"[[script:{scenario}]] go", "--allow-all-tools", *options],
        cwd=shop,
        env=cli_environment(scenario),
        check=True,
        capture_output=True,
        timeout=60,
    )
    events = read(log())
    calls = model_server.calls(scenario)
    assert len(calls) == model_calls(events)
    truth = json.loads((REAL / "1.0.102" / scenario / "truth.json").read_text(encoding="utf-8"))
    steps = [(call["script"], call["step"], call["stream"]) for call in calls]
    assert sorted(steps) == sorted((c["script"], c["step"], c["stream"]) for c in truth["calls"])
    assert_same_shape(events, read(REAL / "1.0.102" / scenario / "events.jsonl"))


def our_server(tmp_path, _label):
    return [str(write_executable(tmp_path, "serve", "--home", tmp_path / "home"))]


def real_cli(_tmp_path, _label):
    return [CLI]


SERVERS = [
    pytest.param(our_server, id="our server"),
    pytest.param(real_cli, id="the real CLI", marks=needs_cli),
]


async def talk(create, wait):
    """The script that every pair of client and server plays; ends with the session's id."""
    session = await create()
    assert await wait(session, "[[script:custom]] go") == "Order A1 is on its way."
    assert await wait(session, "[[script:tools]] go") == "All done: changed a.py."
    idle = asyncio.Event()
    stop = session.on(lambda event: idle.set() if "session.idle" in str(event) else None)
    with pytest.raises(Exception, match="400 boom"):
        await wait(session, "[[error]] go")
    await idle.wait()  # the error comes before session.idle: sent now, a prompt is queued
    stop()
    assert await wait(session, "[[script:sub]] go") == "Sub agent told me. Done."
    assert (await session.get_events())[-1]
    session_id = session.session_id
    await session.disconnect()
    return session_id


async def with_our_client(server, env, shop, provider):
    def broken(_):
        raise ValueError("no such order")

    tools = [
        ClientTool("lookup_order", "Looks up", lambda a: f"order {a['order_id']}: on its way"),
        ClientTool("broken_tool", "Always fails", broken),
    ]
    async with CopilotClient(server, cwd=shop, env=env) as client:

        async def create():
            return await client.create_session(
                model="mock-model",
                provider=provider,
                tools=tools,
                working_directory=shop,
                on_permission_request=approve_all,
            )

        async def wait(session, prompt):
            event = await session.send_and_wait(prompt, timeout=30)
            return event["data"]["content"].strip()

        return await talk(create, wait)


async def with_the_sdk(server, env, shop, provider):
    from copilot import CopilotClient as SdkClient  # noqa: PLC0415
    from copilot import RuntimeConnection  # noqa: PLC0415
    from copilot.session import PermissionHandler  # noqa: PLC0415

    from tests.runner.test_sdk import custom_tools  # noqa: PLC0415

    client = SdkClient(
        connection=RuntimeConnection.for_stdio(path=server[0]),
        env=env,
        working_directory=str(shop),
    )
    await client.start()

    async def create():
        return await client.create_session(
            model="mock-model",
            provider={"type": "openai", "base_url": provider["baseUrl"]},
            tools=custom_tools(),
            streaming=True,
            working_directory=str(shop),
            on_permission_request=PermissionHandler.approve_all,
        )

    async def wait(session, prompt):
        event = await session.send_and_wait(prompt, timeout=30)
        return event.data.content.strip()

    try:
        return await talk(create, wait)
    finally:
        await close_pipes(client)


def play(client, server, tmp_path, shop, cli_environment, model_server, label):
    provider = {"type": "openai", "baseUrl": model_server.url(label), "wireApi": "completions"}
    env = cli_environment(label)
    session_id = asyncio.run(client(server(tmp_path, label), env, shop, provider))
    return read(tmp_path / "home" / "session-state" / session_id / "events.jsonl")


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", [with_our_client, with_the_sdk])
def test_each_client_works_with_each_server(
    client, server, tmp_path, shop, cli_environment, model_server
):
    if client is with_the_sdk:
        pytest.importorskip("copilot", reason="github-copilot-sdk is not installed")
    events = play(client, server, tmp_path, shop, cli_environment, model_server, "pair")
    assert model_calls(events) == len(model_server.calls("pair")) == 2 + 5 + 1 + 2 + 2


@needs_cli
def test_the_real_cli_goes_on_with_our_session_and_we_with_its(run, log, shop, cli_environment):
    run("[[script:tools]] first", "--allow-all-tools")
    session_id = log().parent.name
    subprocess.run(
        [CLI, f"--resume={session_id}", "-p", "[[script:hello]] second", "--allow-all-tools"],
        cwd=shop,
        env=cli_environment("resumed"),
        check=True,
        capture_output=True,
        timeout=60,
    )
    run("[[script:parallel]] third", "--allow-all-tools", "--resume", session_id)
    events, theirs = read(log()), read(REAL / "1.0.102" / "resume" / "events.jsonl")
    changed = {"session.model_change", "session.permissions_changed", "system.message"}
    assert_same_shape(
        [event for event in events if event["type"] not in changed],
        [event for event in theirs if event["type"] not in changed],
    )
    assert [e["parentId"] for e in events] == [None, *(e["id"] for e in events[:-1])]


@needs_cli
def test_our_server_and_the_real_cli_leave_the_same_log(
    tmp_path, shop, cli_environment, model_server
):
    args = (shop, cli_environment, model_server)
    theirs = play(with_our_client, real_cli, tmp_path, *args, "theirs")
    (shop / "a.py").write_text("def f():\n    return 1\n\nprint(f())\n", encoding="utf-8")
    ours = play(with_our_client, our_server, tmp_path, *args, "ours")
    assert_same_shape(ours, theirs)


@pytest.fixture
def server(tmp_path, clean_environment):
    """A server on a port of its own, with scripts; the port."""
    arguments = ["--home", tmp_path / "home", "--script", write_scripts(tmp_path), "--allow-all"]
    with listening(clean_environment, "serve", "--port", 0, *arguments) as port:
        yield port


def test_two_clients_share_a_session(server, shop):
    async def main():
        async with CopilotClient(port=server) as one, CopilotClient(port=server) as two:
            first = await one.create_session(working_directory=shop)
            second = await two.resume_session(first.session_id)
            seen = []
            second.on(lambda event: seen.append(event["type"]))
            await first.send_and_wait("[[script:hello]] go")
            await asyncio.sleep(0.1)
            await first.disconnect()
            # The session lives on for the other one.
            assert await second.send_and_wait("[[script:hello]] go")
            return list(seen)

    seen = asyncio.run(main())
    assert seen.count("session.idle") == 2
    assert "session.shutdown" not in seen


FAKE = """#!{python}
import json, sys
size = int(sys.stdin.buffer.readline().split()[1])
sys.stdin.buffer.readline()
asked = json.loads(sys.stdin.buffer.read(size))
if {version} != 0:
    answer = {{"jsonrpc": "2.0", "id": asked["id"], "result": {{"protocolVersion": {version}}}}}
    body = json.dumps(answer).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
    sys.stdout.buffer.flush()
if {version} != -1:
    sys.stdin.buffer.read()
"""


@pytest.mark.parametrize(
    ("version", "said"),
    [(None, "Cannot reach a server at /no/such/program: No such file or directory"),
     (2, "The server speaks protocol version 2, not 3"),
     (0, "The server at {program} did not answer the request connect within 1 seconds"),
     (-1, "The server speaks protocol version -1, not 3")],
)  # fmt: skip
def test_a_client_that_finds_no_server_says_so_and_leaves_nothing_behind(
    tmp_path, monkeypatch, version, said
):
    monkeypatch.setattr(client, "GRACE_SECONDS", 0.2)  # the server ends by itself, or is killed
    monkeypatch.setattr(client, "HANDSHAKE_SECONDS", 60.0 if version else 1.0)
    program = tmp_path / "server"
    program.write_text(FAKE.format(python=sys.executable, version=version), encoding="utf-8")
    program.chmod(0o755)

    async def main():
        finds_none = CopilotClient([str(program) if version is not None else "/no/such/program"])
        with pytest.raises(InsightsError) as caught:
            async with finds_none:
                pass
        assert str(caught.value).startswith(said.format(program=program))
        process = finds_none._process  # noqa: SLF001  # whether it has ended
        assert process is None or process.returncode is not None
        with pytest.raises(InsightsError, match=r"Cannot reach a server at 127\.0\.0\.1:1"):
            await CopilotClient(port=1).start()

    asyncio.run(main())


def test_steering_joins_the_running_interaction(server, shop):
    async def main():
        async with CopilotClient(port=server) as client:
            session = await client.create_session(working_directory=shop)
            started = asyncio.Event()
            idle = asyncio.Event()
            session.on(lambda e: started.set() if e["type"] == "tool.execution_start" else None)
            session.on(lambda e: idle.set() if e["type"] == "session.idle" else None)
            await session.send("[[script:gate]] go")
            await started.wait()
            await session.send("and this", mode="immediate")
            (shop / "open").touch()  # only now the tool ends
            await asyncio.wait_for(idle.wait(), 60)
            return await session.get_events()

    events = asyncio.run(main())
    messages = [event["data"] for event in events if event["type"] == "user.message"]
    assert [message["delivery"] for message in messages] == ["idle", "steering"]
    assert messages[1]["turnId"] == "1"
    assert messages[1]["interactionId"] == messages[0]["interactionId"]
    before = events[[e["type"] for e in events].index("user.message", 5) - 1]
    assert before["type"] == "assistant.turn_start"


def test_each_prompt_of_a_client_gets_the_reply_of_its_own(server, shop):
    async def main():
        async with CopilotClient(port=server) as client:
            session = await client.create_session(working_directory=shop)
            prompts = ("[[script:background]] one", "[[script:hello]] two")
            return await asyncio.gather(*(session.send_and_wait(text, 20) for text in prompts))

    said = [reply["data"]["content"] for reply in asyncio.run(main())]
    assert said == ["The end.", "Hello there, done."]  # the first agent ended after the second


def test_an_abort_of_a_model_call_drops_the_queue(server, shop):
    async def main():
        async with CopilotClient(port=server) as client:
            session = await client.create_session(working_directory=shop)
            calling = asyncio.Event()
            session.on(lambda e: calling.set() if e["type"] == "model.call_start" else None)
            waiting = asyncio.create_task(session.send_and_wait("[[script:slow_model]] go"))
            await calling.wait()
            await session.send("[[script:hello]] never")
            await session.abort()
            with pytest.raises(InsightsError, match="aborted"):
                await waiting
            await session.send_and_wait("[[script:hello]] after")
            return await session.get_events()

    events = asyncio.run(main())
    types = [event["type"] for event in events]
    assert types[types.index("abort") + 1] == "assistant.turn_end"
    texts = [event["data"]["content"] for event in events if event["type"] == "user.message"]
    assert texts == ["[[script:slow_model]] go", "[[script:hello]] after"]


def test_a_client_that_vanishes_leaves_a_whole_session(server, shop, tmp_path):
    async def main():
        client = CopilotClient(port=server)
        await client.start()
        tool = ClientTool("lookup_order", "Never answers", lambda _: asyncio.sleep(60))
        session = await client.create_session(working_directory=shop, tools=[tool])
        started = asyncio.Event()
        session.on(lambda e: started.set() if e["type"] == "tool.execution_start" else None)
        await session.send("[[script:parallel]] go")
        await session.send("[[script:custom]] and then")  # asks a client that is gone by then
        await started.wait()
        await vanish(client)
        with contextlib.suppress(InsightsError):
            await client.stop()
        async with CopilotClient(port=server) as other:
            for _ in range(100):
                path = tmp_path / "home" / "session-state" / session.session_id / "events.jsonl"
                if read(path)[-1]["type"] == "session.shutdown":
                    break
                await asyncio.sleep(0.05)
            back = await other.resume_session(session.session_id, working_directory=shop)
            await back.send_and_wait("[[script:hello]] again")
        return path

    types = [event["type"] for event in read(asyncio.run(main()))]
    assert types.count("tool.execution_complete") == 5 + 2
    assert types.count("session.shutdown") == 2
    assert types.count("session.resume") == 1
