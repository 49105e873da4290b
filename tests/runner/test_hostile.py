"""Clients that do not keep to the protocol: clear errors, and the server goes on."""

import asyncio
import contextlib
import json
import random
import re
import subprocess
import time
from typing import Any

import pytest

from copilot_insights.errors import InsightsError
from copilot_insights.runner.client import CopilotClient
from tests.runner.shapes import read
from tests.runner.support import command, listening, vanish, write_scripts


@pytest.fixture
def serve(tmp_path, clean_environment):
    """Starts a server; its port."""
    with contextlib.ExitStack() as servers:

        def serve_(token=""):
            arguments = ["--home", tmp_path / "home", "--script", write_scripts(tmp_path)]
            environment = clean_environment | {"COPILOT_CONNECTION_TOKEN": token}
            return servers.enter_context(listening(environment, "serve", "--port", 0, *arguments))

        yield serve_


async def say(port, *chunks, answers=1):
    """Send raw bytes; the messages that come back until the server closes or is silent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got: list[dict[str, Any]] = []
    try:
        with contextlib.suppress(ConnectionError):
            for chunk in chunks:
                writer.write(chunk)
                await writer.drain()
        with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            while len(got) < answers:
                header = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 2)
                found = re.search(rb"Content-Length: (\d+)", header)
                assert found
                got.append(json.loads(await reader.readexactly(int(found[1]))))
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return got


def frame(message):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def request(method, message_id=1, **params):
    return frame({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params})


PING = request("ping", 99)


def error_code(answer):
    return answer["error"]["code"]


@pytest.mark.parametrize(
    ("chunk", "code"),
    [
        (frame(b"{not json"), -32700),
        (frame(b"\xff\xfe"), -32700),
        (frame(b"[" * 100_000), -32700),
        (frame([1, 2]), -32600),
        (frame("text"), -32600),
        (frame({"jsonrpc": "2.0", "id": 1}), -32600),
        (frame({"jsonrpc": "2.0", "id": {}, "method": "ping"}), -32600),
        (frame({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}), -32600),
        (frame({"jsonrpc": "2.0", "id": 1, "method": 7}), -32600),
        (b"Content-Type: text\r\n\r\n", -32700),
        (b"Content-Length: -5\r\n\r\n", -32700),
        (b"Content-Length: x\r\n\r\n", -32700),
        (request("no.such.method"), -32601),
        (request("session.sendAndWait", sessionId="x"), -32601),
        (request("session.send", sessionId="x", prompt="p"), -32603),
        (request("session.send", prompt="p"), -32602),
        (request("session.create", sessionId=5), -32602),
        (request("session.create", sessionId="../escape"), -32603),
        (request("session.create", workingDirectory="/no/such/place"), -32603),
        (request("session.create", tools=[{"name": "bash"}]), -32603),
        (request("session.create", tools=["x"]), -32603),
        (request("session.create", provider={"type": "azure"}), -32603),
        (request("session.create", autopilot={"maxContinues": "many"}), -32603),
        (request("session.resume", sessionId="nobody"), -32603),
        (request("session.delete", sessionId="../../etc"), -32603),
        (request("session.getMetadata", sessionId="../../etc"), -32603),
        (request("session.mode.set", sessionId="x", mode="m"), -32603),
    ],
)
def test_nonsense_is_answered_and_the_connection_goes_on(serve, chunk, code):
    answers = asyncio.run(say(serve(), chunk, PING, answers=2))
    by_id = {answer["id"]: answer for answer in answers}
    assert by_id.pop(99)["result"]["protocolVersion"] == 3
    [answer] = by_id.values()
    assert error_code(answer) == code
    assert "Traceback" not in answer["error"]["message"]


@pytest.mark.parametrize(
    "chunk",
    [
        b"Content-Length: 99999999999\r\n\r\n",
        b"Content-Length: 9" + b"9" * 5000 + b"\r\n\r\n",
        b"x" * 20_000,
        b"Content-Length: 100\r\n\r\nshort",
        b"Content-Len",
    ],
    ids=["huge", "endless number", "no header", "half a body", "half a header"],
)
def test_a_stream_without_frames_is_closed_and_the_others_go_on(serve, chunk):
    port = serve()

    async def main():
        async with CopilotClient(port=port) as other:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(chunk)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 5)
            writer.close()
            assert b'"code":-32700' in answer
            assert (await other.ping("still there"))["message"] == "pong: still there"

    asyncio.run(main())


def test_random_bytes_for_a_while(serve):
    port = serve()
    generator = random.Random(3)  # noqa: S311

    async def main():
        for _ in range(60):
            noise = generator.randbytes(generator.randrange(1, 3000))
            if generator.random() < 0.5:
                noise = b"Content-Length: %d\r\n\r\n" % generator.randrange(3000) + noise
            await say(port, noise, answers=0)
        async with CopilotClient(port=port) as client:
            await client.ping()

    asyncio.run(main())


def test_a_broken_message_is_one_byte_at_a_time_too(serve):
    answers = asyncio.run(say(serve(), *[bytes([byte]) for byte in PING]))
    assert answers[0]["id"] == 99


def test_one_session_cannot_be_reached_as_another(serve, shop):
    """Errors name what was asked for, never a path of the server."""
    port = serve()

    async def main():
        async with CopilotClient(port=port) as client:
            session = await client.create_session(working_directory=shop)
            await session.send_and_wait("[[script:hello]] go")
            for name in ("x/../y", "..", "/etc/passwd", session.session_id + "/.."):
                for method in ("session.send", "session.getMessages", "session.resume"):
                    with pytest.raises(InsightsError) as caught:
                        await client.request(method, {"sessionId": name, "prompt": "p"})
                    assert str(shop.parent) not in str(caught.value)

    asyncio.run(main())


def test_a_token_must_be_shown(serve):
    word = "open sesame"
    port = serve(word)

    async def main():
        answers = await say(
            port, request("session.list", 1), request("connect", 2, token=word[1:]), answers=2
        )
        assert all("token" in answer["error"]["message"] for answer in answers)
        async with CopilotClient(port=port, token=word) as client:
            await client.list_sessions()

    asyncio.run(main())


def test_it_listens_on_loopback_only(serve):
    port = serve()
    with open("/proc/net/tcp", encoding="ascii") as file:  # noqa: PTH123
        listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
    assert [address for address in listening if address.endswith(f":{port:04X}")] == [
        f"0100007F:{port:04X}"
    ]


def test_a_request_can_be_cancelled(serve, shop):
    port = serve()

    async def main():
        async with CopilotClient(port=port) as client:
            session = await client.create_session(working_directory=shop)
            await session.send("[[script:slow_model]] go")
            abort = {"sessionId": session.session_id}
            messages = [
                request("session.resume", 1, sessionId=session.session_id),
                frame({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 77}}),
                frame({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": []}}),
                request("session.abort", 2, **abort),
            ]
            answers = await say(port, *messages, answers=50)
            assert {a["id"]: a.get("result") for a in answers if "id" in a}[2] == {"success": True}

    asyncio.run(main())


def test_a_permission_that_nobody_answers_ends_with_the_client(serve, shop, tmp_path):
    port = serve()

    async def main():
        client = CopilotClient(port=port)
        await client.start()
        session = await client.create_session(
            working_directory=shop, on_permission_request=lambda _: asyncio.sleep(60)
        )
        asked = asyncio.Event()
        session.on(lambda e: asked.set() if e["type"] == "permission.requested" else None)
        await session.send("[[script:nudge]] go", agent_mode="autopilot")
        await session.send("[[script:slow]] go")
        await asked.wait()
        await vanish(client)
        path = tmp_path / "home" / "session-state" / session.session_id / "events.jsonl"
        for _ in range(100):
            if b"session.shutdown" in path.read_bytes():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the session did not end")

    asyncio.run(main())


def test_a_server_on_pipes_ends_with_its_client(shop, tmp_path, clean_environment):
    """What ran is aborted, and the log is whole."""
    arguments = ["--home", tmp_path / "home", "--script", write_scripts(tmp_path), "--allow-all"]
    process = subprocess.Popen(
        command("serve", "--stdio", *arguments),
        env=clean_environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stdin
    process.stdin.write(request("session.create", 1, sessionId="s", workingDirectory=str(shop)))
    process.stdin.write(request("session.send", 2, sessionId="s", prompt="[[script:slow]] go"))
    process.stdin.flush()
    path = tmp_path / "home" / "session-state" / "s" / "events.jsonl"
    deadline = time.monotonic() + 10
    while not (path.exists() and b"tool.execution_start" in path.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.stdin.close()
    assert process.wait(timeout=5) == 0
    types = [event["type"] for event in read(path)]
    assert types[-3:] == ["abort", "assistant.turn_end", "session.shutdown"]


@pytest.mark.parametrize("streams", ["</dev/null", "<&-", "</dev/null >answers"])
def test_a_server_that_nobody_speaks_to_ends_without_a_word(streams, tmp_path, clean_environment):
    words = " ".join(f"'{word}'" for word in command("serve", "--stdio"))
    done = subprocess.run(
        ["bash", "-c", f"{words} {streams}"],
        cwd=tmp_path,
        env=clean_environment,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
