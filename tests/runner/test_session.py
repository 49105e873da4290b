"""Sessions in this process: endings, limits, hooks, permissions, agents in the background."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from copilot_insights.errors import InsightsError
from copilot_insights.runner import worker
from copilot_insights.runner.agent import Limits
from copilot_insights.runner.hooks import HOOK_TYPES, Hooks, load_hook_files
from copilot_insights.runner.model import ModelError
from copilot_insights.runner.permissions import Call, Policy, Rule, is_harmless
from copilot_insights.runner.scripts import ScriptedError, ScriptedModel, Step, load_scripts
from copilot_insights.runner.session import Session, Settings
from copilot_insights.runner.toolbox import builtin_tools
from tests.runner.shapes import assert_same_shape, read
from tests.runner.support import HERE, hooks, of, types, write_scripts

ANSWERS = ("modifiedPrompt", "modifiedTransformedPrompt", "modifiedArgs", "modifiedResult",
           "additionalContext", "decision", "reason", "permissionDecision",
           "permissionDecisionReason")  # fmt: skip
NONSENSE = {
    "text": "oops",
    "list": [1],
    "number": 5,
    "numbers within": dict.fromkeys(ANSWERS, 7),
    "lists within": {name: ["x"] for name in ANSWERS},
}


def test_idle_comes_once_and_last_whatever_happened(play):
    for prompt in ("[[script:hello]] go", "[[error]] go", "[[script:no_such]] go"):
        _, seen = play(prompt)
        before_shutdown = seen[: types(seen).index("session.shutdown")]
        assert types(before_shutdown).count("session.idle") == 1
        rest = types(before_shutdown[types(before_shutdown).index("session.idle") :])
        assert rest in (["session.idle"], ["session.idle", "raised"])


def test_a_model_that_repeats_itself_is_stopped_and_the_log_says_so(play):
    session, _ = play("[[script:forever]] go", limits=Limits(repeats=5))
    # The script goes on with "The end." after its only step; this one does not.
    assert not of("session.error", session.log.events)

    class Stuck(ScriptedModel):
        async def reply(self, _, tools, on_delta):
            first = [{"role": "user", "content": "[[script:forever]]"}]
            return await super().reply(first, tools, on_delta)

    stuck = Stuck(session.settings.model.scripts)
    session, seen = play("[[script:forever]] go", model=stuck, limits=Limits(repeats=5))
    [error] = of("session.error", session.log.events)
    assert error["errorType"] == "limit"
    assert error["message"] == "Stopped: the same call of glob came 6 times in a row."
    assert types(session.log.events).count("assistant.turn_end") == 6
    assert "session.idle" in types(seen)
    session, _ = play("[[script:forever]] go", model=stuck, limits=Limits(turns=4))
    assert of("session.error", session.log.events)[0]["message"] == "Stopped: 4 turns were taken."


def test_a_tool_that_never_ends_is_stopped(play):
    session, _ = play("[[script:slow]] go", limits=Limits(bash_timeout=0.2))
    [completed] = of("tool.execution_complete", session.log.events)
    assert completed["error"]["code"] == "timeout"
    assert of("assistant.message", session.log.events)[-1]["content"] == "Waited."


def test_an_agent_in_the_background_wakes_the_main_one_like_the_clis(play):
    session, seen = play("[[script:background]] go", delay=0.05)
    theirs = read(HERE / "data" / "background.jsonl")
    assert_same_shape(read(session.log.path), theirs)
    assert types(seen).count("session.idle") == 1
    assert types(seen).count("assistant.idle") == 2
    texts = [data["content"] for data in of("assistant.message", seen) if data["content"]]
    assert texts[-1] == "It has answered."


def test_an_abort_ends_agents_and_tools(play):
    async def then(session):
        started = asyncio.Event()
        session.on(lambda e: started.set() if e["type"] == "subagent.started" else None)
        session.send("[[script:sub]] go")
        await started.wait()
        await session.abort()
        assert not session.worker.busy

    session, seen = play(then=then, delay=0.1)
    [completed] = of("subagent.completed", session.log.events)
    assert completed["cancelled"] is True
    assert of("session.idle", seen)[-1]["aborted"] is True
    # The next prompt's history answers the call that was cut.
    messages = session.root.history.messages()
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool"]
    assert "interrupted" in messages[-1]["content"]


def test_a_failing_sub_agent_is_a_failed_call(play, tmp_path):
    broken = load_scripts(write_scripts(tmp_path))
    del broken["child"]
    session, _ = play("[[script:sub]] go", model=ScriptedModel(broken))
    [failed] = of("subagent.failed", session.log.events)
    assert "There is no script 'child'" in failed["error"]
    [completed] = of("tool.execution_complete", session.log.events)
    assert completed["success"] is False
    assert of("assistant.message", session.log.events)[-1]["content"] == "Sub agent told me. Done."


def test_a_failing_agent_in_the_background_is_reported(play, tmp_path):
    broken = load_scripts(write_scripts(tmp_path))
    del broken["child"]
    session, seen = play("[[script:background]] go", model=ScriptedModel(broken))
    assert len(of("subagent.failed", session.log.events)) == 1
    assert (
        "There is no script 'child'" in of("tool.execution_complete", seen)[-1]["result"]["content"]
    )
    assert of("assistant.message", seen)[-1]["content"] == "It has answered."


def test_a_hook_can_deny_change_and_add(play, shop):
    async def pre(data):
        if data["toolName"] == "bash":
            return {"permissionDecision": "deny", "permissionDecisionReason": "no shell"}
        if data["toolName"] == "view":
            return {"modifiedArgs": {"path": "b.py"}}
        return None

    (shop / "b.py").write_text("other\n", encoding="utf-8")
    given = hooks(
        preToolUse=pre,
        postToolUse=lambda _: {"additionalContext": "look twice"},
        postToolUseFailure=lambda _: {"additionalContext": "try again"},
        sessionStart=lambda data: {"additionalContext": f"source {data['source']}"},
        sessionEnd=lambda _: None,
    )
    session, _ = play("[[script:tools]] go", hooks=given)
    events = session.log.events
    completed = {d["toolCallId"]: d for d in of("tool.execution_complete", events)}
    results = {
        d["toolName"]: completed[d["toolCallId"]] for d in of("tool.execution_start", events)
    }
    assert results["bash"]["error"] == {
        "message": "Denied by preToolUse hook: no shell",
        "code": "denied",
    }
    assert results["view"]["result"]["content"] == "other\n\n\n(A hook adds: look twice)"
    assert results["edit"]["success"]
    assert of("user.message", events)[0]["transformedContent"].endswith("source new")
    assert of("hook.end", events)[-1]["hookType"] == "sessionEnd"
    assert of("hook.start", events)[-1]["input"]["reason"] == "complete"


def test_what_hooks_add_to_a_call_is_in_its_result_however_it_ends(play):
    def second(data):
        decision = {"permissionDecision": "deny"} if data["toolName"] == "bash" else {}
        return {"additionalContext": "twice"} | decision

    given = Hooks()
    given.add("preToolUse", lambda _: {"additionalContext": "look"})
    given.add("preToolUse", second)
    session, _ = play("[[script:fail]] go", hooks=given)
    ends = of("tool.execution_complete", session.log.events)
    said = [(end.get("error") or end["result"]).get("message") for end in ends]
    assert [text.endswith("\n\n(A hook adds: look\n\ntwice)") for text in said] == [True] * 3
    assert said[1].startswith("Denied by preToolUse hook: no reason given\n\n")


def test_a_hook_can_add_to_a_sub_agents_prompt_send_it_back_and_change_its_words(play):
    asked = []

    def stop(data):
        asked.append((data["response"], data["stop_hook_active"]))
        if len(asked) < 3:
            return {"decision": "block", "reason": f"[[script:hello]] again {len(asked)}"}
        return {"modifiedResponse": "in other words"}

    never = {"decision": "block", "reason": "of no account for a sub-agent"}
    given = hooks(
        subagentStart=lambda _: {"additionalContext": "mind the gap"},
        subagentStop=stop,
        agentStop=lambda data: never if data.get("agentId") else None,
    )
    session, _ = play("[[script:sub]] go", hooks=given)
    assert asked[0] == ("I found a.py", False)
    assert asked[1:] == [("Hello there, done.", True)] * 2
    child = [event for event in session.log.events if event.get("agentId")]
    prompts = of("user.message", child)
    _, _, first = prompts[0]["transformedContent"].partition("\n\n")
    assert first == "mind the gap\n\n[[script:child]] find the files"
    assert [(data["content"], data["source"]) for data in prompts[1:]] == [("", "system")] * 2
    assert {data["interactionId"] for data in prompts} == {prompts[0]["interactionId"]}
    assert prompts[2]["transformedContent"].endswith("again 2")
    last = of("tool.execution_complete", session.log.events)[-1]
    assert last["result"]["content"] == "in other words"


def test_a_hook_sends_a_sub_agent_back_eight_times_at_most(play):
    given = hooks(subagentStop=lambda _: {"decision": "block"})
    session, _ = play("[[script:sub]] go", hooks=given)
    prompts = [d for d in of("user.message", session.log.events) if d.get("source") == "system"]
    assert len(prompts) == 8
    assert of("subagent.completed", session.log.events)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([1], "A hook at postToolUse gave an answer of type list, which is left out"),
        ({"additionalContext": 7, "modifiedResult": "new"},
         "A hook at postToolUse gave additionalContext of type int, which is left out"),
    ],
)  # fmt: skip
def test_what_is_no_answer_of_a_hook_is_left_out_and_said_once(play, caplog, answer, said):
    session, _ = play("[[script:tools]] go", hooks=hooks(postToolUse=lambda _: answer))
    assert caplog.messages == [said]
    ends = of("hook.end", session.log.events)
    kept = {"modifiedResult": "new"} if isinstance(answer, dict) else None
    assert [(end["success"], end.get("output")) for end in ends] == [(True, kept)] * 5
    results = [d["result"]["content"] for d in of("tool.execution_complete", session.log.events)]
    assert (set(results) == {"new"}) == isinstance(answer, dict)


def test_a_hook_that_fails_is_recorded_and_changes_nothing(play):
    def broken(_):
        raise ValueError("hook broke")

    given = hooks(preToolUse=broken, userPromptSubmitted=broken, postToolUse=lambda _: {"x": {1}})
    session, _ = play("[[script:hello]] go", "[[script:parallel]] go", hooks=given)
    ends = of("hook.end", session.log.events)
    assert {end["success"] for end in ends} == {False}
    assert ends[0]["error"] == {"message": "hook broke"}
    assert all(data["success"] for data in of("tool.execution_complete", session.log.events))


@pytest.mark.parametrize("kind", HOOK_TYPES)
@pytest.mark.parametrize("output", NONSENSE.values(), ids=NONSENSE)
def test_a_hook_that_answers_nonsense_holds_nothing_up(play, kind, output):
    given = hooks(**{kind: lambda _: output})
    _, seen = play("[[script:sub]] go", "[[error]] go", hooks=given)
    assert types(seen).count("session.idle") == 2
    assert "session.shutdown" in types(seen)


def test_what_nobody_foresaw_is_an_error_and_no_silence(play, monkeypatch):
    async def breaks(*_):
        raise ZeroDivisionError("in the middle")

    monkeypatch.setattr(worker, "welcome", breaks)
    _, seen = play("[[script:hello]] go")
    assert of("session.error", seen)[0]["message"] == "ZeroDivisionError: in the middle"
    assert types(seen).count("session.idle") == 1


def test_an_agent_in_the_background_that_breaks_is_told_as_failed(play, tmp_path):
    class Breaks(ScriptedModel):
        async def reply(self, messages, tools, on_delta):
            if "[[script:child]]" in str(messages[-1]):
                raise ZeroDivisionError("in the child")
            return await super().reply(messages, tools, on_delta)

    model = Breaks(load_scripts(write_scripts(tmp_path)))
    session, _ = play("[[script:background]] go", model=model)
    [failed] = of("subagent.failed", session.log.events)
    assert failed["error"] == "ZeroDivisionError: in the child"
    assert of("system.notification", session.log.events)
    results = [d.get("result") for d in of("tool.execution_complete", session.log.events)]
    assert {"content": "The agent failed: ZeroDivisionError: in the child"} in results


def test_a_prompt_does_not_take_the_error_of_another(play):
    async def then(session):
        session.send("[[error]] first")
        assert await session.send_and_wait("[[script:hello]] second", 20) == "Hello there, done."
        with pytest.raises(InsightsError, match="400 boom"):
            await session.send_and_wait("[[error]] third", 20)

    play(then=then)


def test_each_prompt_gets_the_reply_of_its_own(play):
    """Also if a hook sent the agent back to work, or an agent in the background ended later."""
    blocked = []

    def once(data):
        blocked.append(data)
        return {"decision": "block", "reason": "[[script:big]] more"} if len(blocked) == 1 else None

    async def then(session):
        prompts = ("[[script:hello]] one", "[[script:background]] two", "[[script:unicode]] three")
        said.extend(await asyncio.gather(*(session.send_and_wait(text, 20) for text in prompts)))

    said: list[str] = []
    play(then=then, hooks=hooks(agentStop=once), delay=0.02)
    # the agent ended after the third prompt was sent, whose script is over by then
    assert said == ["Big output seen.", "The end.", "é ü 漢字"]


def test_an_error_before_the_interaction_is_that_of_its_prompt(play, monkeypatch):
    async def breaks(*_):
        raise ZeroDivisionError("in the middle")

    async def then(session):
        monkeypatch.setattr(worker, "welcome", breaks)
        with pytest.raises(InsightsError, match="in the middle"):
            await session.send_and_wait("[[script:hello]] second", 20)

    play("[[script:hello]] first", then=then)


def test_an_error_that_a_script_gives_so_often_is_over_then():
    scripts = {"x": [Step("At last.", error=ScriptedError(500, "no", times=2))]}
    model = ScriptedModel(scripts)

    def ask():
        return asyncio.run(model.reply([{"role": "user", "content": "go"}], [], lambda _: None))

    for _ in range(2):
        with pytest.raises(ModelError, match="500 no"):
            ask()
    assert ask().text == "At last."


@pytest.mark.parametrize(
    "command",
    ["rm x", "rm nothing; echo ran", "true; rm -f x; echo ran", "true && /bin/rm x", "echo $(rm x)",
     "echo `rm x`", "(rm x)", "{ rm x; }", "A=1 rm x", "sudo rm x", "'rm' x", "true\nrm x",
     "if true; then rm x; fi", "ls | xargs rm", "sleep 9 & rm x", "echo 'a; rm x"],
)  # fmt: skip
def test_a_deny_rule_finds_its_command_among_others(command):
    bash = builtin_tools()["bash"]
    assert Rule.parse("shell(rm:*)").denies(bash, Call(command, ()))
    assert not Rule.parse("shell(git:*)").denies(bash, Call(command, ()))
    assert Rule.parse("shell(rm:*)").allows(bash, Call(command, ())) == (command == "rm x")


def test_hooks_can_be_commands(play, tmp_path):
    """What a command prints on stderr, its time and its exit code are its own affair."""
    commands = {
        "preToolUse": [
            {"bash": 'echo noise >&2; grep -q sleep && echo \'{"permissionDecision": "deny"}\''}
        ],
        "postToolUse": [{"bash": "sleep 5", "timeoutSec": 0.1}, {"bash": "echo no json"}],
        "agentStop": [{"bash": 'echo "$WORD" >&2; exit 3', "env": {"WORD": "hush"}}],
        "unknownKind": [{"bash": "true"}],
    }
    file = tmp_path / "hooks.json"
    file.write_text(json.dumps({"version": 1, "hooks": commands}), encoding="utf-8")
    given = Hooks()
    load_hook_files([file], given)
    session, _ = play(
        "[[script:nudge]] go", "[[script:parallel]] go", mode="autopilot", hooks=given
    )
    ends = of("hook.end", session.log.events)
    messages = {(e["hookType"], (e.get("error") or {}).get("message", "ok")) for e in ends}
    assert ("postToolUse", "killed after 0.1 seconds") in messages
    assert any(m.startswith("Expecting value") for kind, m in messages if kind == "postToolUse")
    assert ("agentStop", "exit code 3: ") in messages
    completed = of("tool.execution_complete", session.log.events)
    denied = [d for d in completed if not d["success"]]
    assert len(denied) == 5  # the sleeps of the script `parallel`; the echo and task_complete ran
    assert {d["error"]["message"] for d in denied} == {"Denied by preToolUse hook: no reason given"}


def test_a_hook_can_block_a_prompt(play):
    given = hooks(userPromptSubmitted=lambda _: {"decision": "block", "reason": "not today"})
    session, seen = play("[[script:hello]] go", hooks=given)
    assert not session.log.path.exists()
    [warning] = of("session.warning", seen)
    assert warning["message"] == "not today"
    assert "session.idle" in types(seen)


def test_an_agent_stop_hook_sends_the_agent_back_eight_times_at_most(play):
    given = hooks(agentStop=lambda _: {"decision": "block", "reason": "run the tests too"})
    session, _ = play("[[script:hello]] go", hooks=given)
    messages = of("user.message", session.log.events)
    assert [m["content"] for m in messages] == ["[[script:hello]] go", *["run the tests too"] * 8]
    assert {m["delivery"] for m in messages[1:]} == {"queued"}
    starts = [d for d in of("hook.start", session.log.events) if d["hookType"] == "agentStop"]
    assert [d["input"]["stop_hook_active"] for d in starts] == [False, *[True] * 8]


def test_an_error_is_told_to_its_hook_before_the_turn_ends(play):
    told: list[Any] = []
    session, _ = play("[[error]] go", hooks=hooks(errorOccurred=told.append))
    assert told[0]["errorContext"] == "model_call"
    assert types(session.log.events)[-5:] == [
        "hook.start",
        "hook.end",
        "assistant.turn_end",
        "session.error",
        "session.shutdown",
    ]


def test_a_hook_that_asks_goes_to_whoever_decides(play):
    def ask(_):
        return {"permissionDecision": "ask", "permissionDecisionReason": "sure?"}

    asked = []

    async def decide(data):
        asked.append(data["permissionRequest"])
        return {"kind": "approve-once"}

    policy = Policy(allow_all=True, ask=decide)
    session, _ = play("[[script:sub]] go", hooks=hooks(preToolUse=ask), policy=policy)
    assert {request["kind"] for request in asked} == {"hook"}
    assert all(d["success"] for d in of("tool.execution_complete", session.log.events))
    session, _ = play("[[script:sub]] go", hooks=hooks(preToolUse=ask))
    [completed] = of("tool.execution_complete", session.log.events)
    assert completed["error"]["code"] == "denied"
    assert "sure?" in completed["error"]["message"]


def test_rules_are_obeyed(play, shop):
    def outcomes(**rules):
        (shop / "a.py").write_text("return 1\n", encoding="utf-8")
        session, _ = play("[[script:tools]] go", policy=Policy(**rules))
        events = session.log.events
        names = {d["toolCallId"]: d["toolName"] for d in of("tool.execution_start", events)}
        denied = [
            names[d["toolCallId"]]
            for d in of("tool.execution_complete", events)
            if not d["success"] and d["error"]["code"] == "denied"
        ]
        return denied, len(of("permission.requested", events))

    assert outcomes() == (["edit", "bash"], 2)
    assert outcomes(allow=[Rule.parse("write"), Rule.parse("bash")]) == ([], 0)
    assert outcomes(allow_all=True, deny=[Rule.parse("shell")]) == (["bash", "bash"], 0)
    assert outcomes(allow_all=True, deny=[Rule.parse("shell(ls)")])[0] == ["bash"]
    assert outcomes(allow=[Rule.parse("shell(sleep:*)")])[0] == ["edit", "bash"]  # `;` follows
    assert outcomes(allow_all=True, deny=[Rule.parse("write(*.py)")])[0] == ["edit"]


@pytest.mark.parametrize("text", ["", "(x)", "shell(git", "shell(git:*"])
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(InsightsError, match="is no permission rule"):
        Rule.parse(text)


@pytest.mark.parametrize(
    ("command", "harmless"),
    [
        ("ls", True),
        ("ls -la sub", True),
        ("cat a.py", True),
        ("echo hello", True),
        ("cat ../secret", False),
        ("cat /etc/passwd", False),
        ("cat link/secret", False),
        ("wc --files0-from=/etc/passwd", False),
        ("ls; rm -rf .", False),
        ("ls $(rm x)", False),
        ("ls > file", False),
        ("LS", False),
        ("git status", False),
        ("", False),
        ("ls\nrm x", False),
        ("cat ~/x", False),
    ],
)
def test_only_commands_that_surely_read_inside_are_harmless(command, harmless, shop, tmp_path):
    (shop / "link").symlink_to(tmp_path)
    assert is_harmless(command, shop.resolve()) is harmless


def test_an_approval_for_the_session_is_remembered(play):
    asked = []

    async def decide(data):
        asked.append(data["permissionRequest"])
        return {"kind": "approve-for-session"}

    session, _ = play(
        "[[script:nudge]] go",
        "[[script:nudge]] go",
        mode="autopilot",
        policy=Policy(ask=decide, ask_reads=True),
    )
    assert [request["fullCommandText"] for request in asked] == ["echo hi"]
    [outcome] = of("permission.completed", session.log.events)
    assert outcome["result"] == {"kind": "approved-for-session"}


def test_the_queue_runs_in_order(play):
    async def then(session):
        for number in range(5):
            session.send(f"[[script:hello]] {number}")
        await session.worker.finish()

    session, seen = play(then=then)
    texts = [data["content"][-1] for data in of("user.message", session.log.events)]
    assert texts == ["0", "1", "2", "3", "4"]
    assert types(seen).count("session.idle") == 1


def test_a_subscriber_that_fails_disturbs_nobody(play, caplog):
    async def then(session):
        def broken(_):
            raise ValueError("subscriber broke")

        stop = session.on(broken)
        await session.send_and_wait("[[script:hello]] go", 10)
        stop()
        stop()

    _, seen = play(then=then)
    assert "session.idle" in types(seen)
    assert "subscriber broke" in caplog.text


def test_a_session_id_cannot_lead_out_of_its_home(tmp_path):
    settings = Settings(tmp_path, tmp_path, ScriptedModel({"x": []}))
    for name in ("../x", "a/b", "", ".", "..", ".hidden", "x\0y", "/etc"):
        with pytest.raises(InsightsError, match="is no session id"):
            Session.create(settings, name)


@pytest.mark.parametrize("open_", [Session.create, Session.resume])
def test_a_session_id_is_no_longer_than_a_file_name(open_, tmp_path):
    settings = Settings(tmp_path, tmp_path, ScriptedModel({"x": []}))
    for name in ("x" * 256, "é" * 128):
        with pytest.raises(InsightsError, match="A session id of more than 255 bytes: "):
            open_(settings, name)


def test_a_session_can_be_resumed_in_its_mode(play):
    session, _ = play("[[script:nudge]] go", mode="autopilot")

    async def main():
        settings = dataclasses.replace(session.settings, mode="interactive")
        again = Session.resume(settings, session.id)
        assert again.mode == "autopilot"
        await again.send_and_wait("[[script:nudge]] go", 10)
        await again.shutdown()
        return again

    events = asyncio.run(main()).log.events
    assert types(events).count("session.mode_changed") == 1
    assert types(events).count("session.mode_notice_delivered") == 1
    assert types(events).count("session.task_complete") == 2
    assert types(events).count("system.message") == 1


def test_a_session_may_read_what_it_spilled_and_no_other_may(play):
    one, _ = play("[[script:big]] go", policy=Policy(allow_all=True))
    two, _ = play("[[script:hello]] go", policy=Policy(allow_all=True))
    [spilled] = (one.directory / "files").iterdir()
    assert one.policy.outside(Call("", (spilled.resolve(),)), one.cwd) == []
    assert two.policy.outside(Call("", (spilled.resolve(),)), two.cwd) == [spilled.resolve()]
