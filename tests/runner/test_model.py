"""The OpenAI-compatible client against the scripted model server, and the server by itself."""

import asyncio
import http.client
import json
import subprocess
import time

import pytest

from copilot_insights.errors import InsightsError
from copilot_insights.runner.model import (
    Delta,
    ModelError,
    OpenAIModel,
    Provider,
    model_from_environment,
    parse_arguments,
)
from copilot_insights.runner.scripts import ScriptedModel, load_scripts
from tests.runner.shapes import read
from tests.runner.support import command, listening

pytest.importorskip("openai", reason="openai is not installed (extra runner)")

SCRIPTS = {
    "hello": [
        {
            "text": "Hello there, done.",
            "usage": {"input": 100, "output": 7, "cached": 60, "reasoning": 3},
        }
    ],
    "tools": [
        {"text": "Two.", "tools": [{"name": "bash", "arguments": {"command": "ls {cwd}"}}] * 2}
    ],
    "flaky": [{"text": "At last.", "error": {"status": 503, "message": "busy", "times": 2}}],
    "limited": [{"text": "At last.", "error": {"status": 429, "message": "slow down", "times": 1}}],
    "broken": [{"error": {"status": 500, "message": "no more"}}],
    "locked": [{"error": {"status": 401, "message": "who are you"}}],
    "abc": [{"text": "a"}, {"text": "b"}, {"text": "c"}],
    "slow": [{"text": "Slow.", "delay": 0.3}],
}


@pytest.fixture
def server(tmp_path, clean_environment):
    """`(port, calls)` of a scripted model server."""
    scripts, log = tmp_path / "scripts.json", tmp_path / "calls.jsonl"
    scripts.write_text(json.dumps(SCRIPTS), encoding="utf-8")
    with listening(clean_environment, "model", scripts, "--log", log) as port:
        yield port, lambda: read(log)


def ask(port, name, retries=4, system="Current working directory: /home/dev/shop"):
    deltas: list[Delta] = []

    async def main():
        provider = Provider(f"http://127.0.0.1:{port}/run/x/v1")
        model = OpenAIModel("some-model", provider, retries=retries)
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"[[script:{name}]] go"},
        ]
        try:
            return await model.reply(messages, [], deltas.append)
        finally:
            await model.close()

    return asyncio.run(main()), deltas


def test_a_reply_is_streamed_with_its_usage(server):
    port, calls = server
    reply, deltas = ask(port, "hello")
    assert reply.text == "Hello there, done."
    assert "".join(delta.text for delta in deltas) == reply.text
    assert len(deltas) == 3
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens) == (100, 7)
    assert (usage.cache_read_tokens, usage.reasoning_tokens) == (60, 3)
    assert reply.finish_reason == "stop"
    [call] = calls()
    assert call["id"] == reply.id
    assert (call["label"], call["script"], call["step"]) == ("x", "hello", 0)
    assert (call["stream"], call["model"], call["error"]) == (True, "some-model", False)


def test_tool_calls_are_put_together(server):
    reply, deltas = ask(server[0], "tools")
    assert [call.name for call in reply.tool_calls] == ["bash", "bash"]
    assert reply.tool_calls[0].arguments == {"command": "ls /home/dev/shop"}
    assert len({call.id for call in reply.tool_calls}) == 2
    assert [delta.tool_name for delta in deltas if delta.tool_call_id] == ["bash", "bash"]
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize(("name", "attempts"), [("flaky", 3), ("limited", 2)])
def test_what_may_pass_is_tried_again(server, name, attempts):
    port, calls = server
    started = time.monotonic()
    reply, _ = ask(port, name)
    assert reply.text == "At last."
    assert [call["error"] for call in calls()] == [True] * (attempts - 1) + [False]
    assert time.monotonic() - started > 0.375  # the shortest first wait


@pytest.mark.parametrize(
    ("name", "attempts", "status", "kind", "message"),
    [
        ("broken", 2, 500, "query", "500 no more"),
        ("locked", 1, 401, "authentication", "401 who are you"),
        ("no_such", 1, 404, "query", "404 There is no script 'no_such'"),
    ],
)
def test_what_does_not_pass_is_an_error(server, name, attempts, status, kind, message):
    port, calls = server
    with pytest.raises(ModelError) as caught:
        ask(port, name, retries=1)
    assert (caught.value.status, caught.value.kind) == (status, kind)
    assert caught.value.message == message
    assert len(calls()) == attempts


def test_no_server_is_an_error_without_status():
    with pytest.raises(ModelError) as caught:
        ask(1, "hello", retries=0)
    assert caught.value.status is None


def post(port, body, path="/v1/chat/completions", headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, raw, headers or {})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def test_a_reply_need_not_be_streamed(server):
    messages = [{"role": "user", "content": [{"type": "text", "text": "[[script:tools]]"}]}]
    status, answer = post(server[0], {"model": "m", "messages": messages})
    assert status == 200
    [choice] = answer["choices"]
    assert choice["message"]["content"] == "Two."
    assert choice["finish_reason"] == "tool_calls"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
    assert answer["usage"]["total_tokens"] == (
        answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    )


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        (b"not json", "/v1/chat/completions", 400),
        (b"[]", "/v1/chat/completions", 400),
        (b'{"messages": "x"}', "/v1/chat/completions", 400),
        (b'{"messages": [1]}', "/v1/chat/completions", 400),
        (b"{}", "/v1/responses", 404),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(server, body, path, status):
    answered, answer = post(server[0], body, path)
    assert answered == status
    assert answer["error"]["message"]
    assert ask(server[0], "hello")[0].text  # the server goes on


def test_a_client_that_compacts_its_history_goes_on_where_it_was(server):
    """Assistant messages are gone from its history then; the server counts the calls."""
    port, calls = server
    url = "/run/compacting/v1/chat/completions"
    user = {"role": "user", "content": "[[script:abc]] go"}
    said = {"role": "assistant", "content": "x"}

    def text(*messages):
        _, answer = post(port, {"model": "m", "messages": list(messages)}, url)
        return answer["choices"][0]["message"]["content"]

    assert [text(user), text(user, said)] == ["a", "b"]
    assert "overview" in text(user, said, said, {"role": "user", "content": "Summarise all that."})
    assert [text(user), text(user, said)] == ["c", "The end."]
    assert [call["compaction"] for call in calls()] == [False, False, True, False, False]


def test_models_are_listed(server):
    connection = http.client.HTTPConnection("127.0.0.1", server[0], timeout=10)
    connection.request("GET", "/v1/models")
    assert json.loads(connection.getresponse().read())["data"]
    connection.close()


def test_steps_wait_as_long_as_they_say(server):
    started = time.monotonic()
    assert ask(server[0], "slow")[0].text == "Slow."
    assert time.monotonic() - started >= 0.3


def test_the_environment_of_the_cli_is_understood():
    base = {"COPILOT_PROVIDER_BASE_URL": "http://127.0.0.1:1/v1", "COPILOT_MODEL": "m"}
    model = model_from_environment(None, base | {"COPILOT_PROVIDER_API_KEY": "k"})
    assert model
    assert (model.name, model.wire_name) == ("m", "m")
    assert model.provider.api_key == "k"
    model = model_from_environment("other", base | {"COPILOT_PROVIDER_WIRE_MODEL": "wire"})
    assert model
    assert (model.name, model.wire_name) == ("other", "wire")
    assert model_from_environment("m", {}) is None
    with pytest.raises(InsightsError, match="No model is named"):
        model_from_environment(None, {"COPILOT_PROVIDER_BASE_URL": "http://x"})
    with pytest.raises(InsightsError, match="is not spoken"):
        model_from_environment(None, base | {"COPILOT_PROVIDER_TYPE": "anthropic"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("{", "{"),
        ("[1]", "[1]"),
        ('{"a": NaN}', '{"a": NaN}'),
        ("null", "null"),
    ],
)
def test_arguments_that_are_no_object_stay_text(text, value):
    assert parse_arguments(text) == value


def test_run_takes_a_model_from_the_environment(server, shop, tmp_path, clean_environment, log):
    env = clean_environment | {
        "COPILOT_PROVIDER_BASE_URL": f"http://127.0.0.1:{server[0]}/run/env/v1",
        "COPILOT_MODEL": "some-model",
    }
    arguments = ["[[script:hello]] go", "--cwd", shop, "--home", tmp_path / "home"]
    done = subprocess.run(
        command("run", *arguments), env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "Hello there, done.\n"
    [record] = [e["data"]["usage"] for e in read(log()) if e["type"] == "session.usage_record"]
    assert (record["model"], record["inputTokens"], record["finishReason"]) == (
        "some-model",
        100,
        "stop",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is no script"),
        ('{"a": [{"txt": 1, "text": 2}]}', "is no script"),
        ("{", "is not JSON"),
        ("{}", "holds no script"),
    ],
)
def test_a_script_that_is_none_is_refused(content, message, tmp_path):
    path = tmp_path / "s.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InsightsError, match=message):
        load_scripts(path)


def test_the_built_in_demo_plays_to_its_end():
    scripts = load_scripts("demo")
    assert list(scripts) == ["demo", "scout"]
    reply = asyncio.run(
        ScriptedModel(scripts).reply([{"role": "user", "content": "hi"}], [], lambda _: None)
    )
    assert reply.tool_calls
