"""Our server answers what the official SDK asked the real CLI, in the recorded conversation."""

import asyncio
from typing import Any

import pytest

from copilot_insights.errors import InsightsError
from copilot_insights.runner.client import CopilotClient, approve_all
from tests.runner.shapes import read
from tests.runner.support import HERE, listening, write_scripts

NOT_OURS = {
    "nativeSessionId": "ids of sessions that live elsewhere",
    "extensions": "there are none",
    "mcpApps": "there are none",
    "canvases": "there are none",
    "clientName": "kept in workspace.yaml",
    "gitRoot": "the recording was made outside a repository",
    "branch": "the same",
}
"""Fields of answers that one side has and the other has not, each with its reason."""


def recorded():
    """Method → the results and the errors that the real CLI gave."""
    asked: dict[str, str] = {}
    answers: dict[str, list[dict[str, Any]]] = {}
    for line in read(HERE / "data" / "wire.jsonl"):
        message = line["message"]
        if "method" in message:
            asked[message["id"]] = message["method"]
        else:
            answers.setdefault(asked[message["id"]], []).append(message)
    return answers


def keys(value):
    """The names of all fields in a value."""
    if isinstance(value, dict):
        return set(value).union(*(keys(inner) for inner in value.values()))
    return set().union(*(keys(inner) for inner in value)) if isinstance(value, list) else set()


@pytest.fixture
def answers(tmp_path, shop, clean_environment):
    """Method → the result that our server gives, from the same conversation."""
    scripts = write_scripts(tmp_path)
    arguments = ("--port", 0, "--home", tmp_path / "home", "--script", scripts)

    async def talk(port):
        given = {}
        async with CopilotClient(port=port) as client:

            async def ask(method, **params):
                given[method] = await client.request(method, params)
                return given[method]

            given["connect"] = await client.request("connect", {})
            await ask("status.get")
            config = {"model": "mock-model", "workingDirectory": str(shop)}
            session_id = (await ask("session.create", sessionId="s-1", **config))["sessionId"]
            await ask("session.send", sessionId=session_id, prompt="[[script:hello]] go")
            await asyncio.sleep(0.2)
            await ask("session.abort", sessionId=session_id)
            await ask("session.getMessages", sessionId=session_id)
            await ask("session.detach", sessionId=session_id)
            await ask("session.resume", sessionId=session_id, **config)
            await ask("session.list")
            await ask("session.getMetadata", sessionId=session_id)
            await ask("session.getLastId")
            await ask("session.delete", sessionId=session_id)
            given["no such session"] = await error(
                client, "session.resume", sessionId="no-such-session"
            )
            given["no such method"] = await error(client, "session.sendAndWait", sessionId="s-1")
            await ask("runtime.shutdown")
        return given

    async def error(client, method, **params):
        with pytest.raises(InsightsError) as caught:
            await client.request(method, params)
        return str(caught.value)

    with listening(clean_environment, "serve", *arguments, ends=True) as port:
        return asyncio.run(talk(port))


def test_the_answers_have_the_fields_of_the_clis(answers):
    theirs = recorded()
    for method, result in answers.items():
        if method.startswith("no such"):
            continue
        real = [message["result"] for message in theirs[method] if "result" in message]
        fields = keys(real) - {"data", *keys([r.get("events") for r in real if r])}
        own = keys(result) - {"data", *keys((result or {}).get("events"))}
        assert own ^ fields <= set(NOT_OURS), (method, own ^ fields)


def test_the_errors_are_those_of_the_cli(answers):
    theirs = recorded()
    real = [m["error"] for m in theirs["session.sendAndWait"]]
    assert {(e["code"], e["message"]) for e in real} == {
        (-32601, "Unhandled method session.sendAndWait")
    }
    assert answers["no such method"].endswith("Unhandled method session.sendAndWait")
    [error] = [m["error"] for m in theirs["session.resume"] if "error" in m]
    assert error["message"].endswith("Session not found: no-such-session")
    assert "Session not found: no-such-session" in answers["no such session"]


def test_permissions_and_tools_are_answered_as_recorded(tmp_path, shop, clean_environment):
    arguments = ("--port", 0, "--home", tmp_path / "home", "--script", write_scripts(tmp_path))

    async def talk(port):
        async with CopilotClient(port=port) as client:
            session = await client.create_session(
                working_directory=shop, on_permission_request=approve_all
            )
            await session.send_and_wait("[[script:nudge]] go")
            late = await client.request(
                "session.permissions.handlePendingPermissionRequest",
                {"sessionId": session.session_id, "requestId": "x", "result": {"kind": "reject"}},
            )
            tool = await client.request(
                "session.tools.handlePendingToolCall",
                {"sessionId": session.session_id, "requestId": "x", "result": "y"},
            )
            return late, tool

    with listening(clean_environment, "serve", *arguments) as port:
        assert asyncio.run(talk(port)) == ({"success": False}, {"success": False})
