"""Redacted copies: the same numbers, and nothing of what was said, where, or by whom."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from detect_secrets.core.scan import scan_file
from detect_secrets.settings import default_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from copilot_insights import load
from copilot_insights.decoder import decode
from copilot_insights.discover import find
from copilot_insights.redact import KEYS, REPLACED, WORDS, Redactor, redact
from copilot_insights.schema import CATEGORY, EVENTS, FIELDS, TABLES
from tests.test_damage import (
    BROKEN,
    DEEP,
    FIRST,
    a_turn,
    event,
    good_lines,
    store,
    tool_end,
    tool_start,
)

HERE = Path(__file__).parent
LOGS = sorted([
    *(HERE / "data").rglob("events.jsonl"), *(HERE.parent / "sample_logs").rglob("events.jsonl"),
])  # fmt: skip


def copy_of(log, to, **how):
    """The copy of a log; without the store beside it, which is not copied."""
    alone = store(to / "original" / log.parent.name / "events.jsonl", log.read_bytes())
    return alone, redact(find([alone]).files, to / "copy", **how).files[0]


def flat(value):
    return value if isinstance(value, str) else repr(value)


def assert_equal_tables(original, copy):
    """Equal but for the replaced columns, in which the same became the same and only that."""
    before, after = load([original], events=True), load([copy], events=True)
    forth, back = {}, {}
    for name, columns in TABLES.items():
        old, new = before.table(name), after.table(name)
        assert old.height == new.height, name
        for column in columns:
            if column not in REPLACED[name]:
                assert old[column].to_list() == new[column].to_list(), (name, column)
                continue
            for a, b in zip(old[column], new[column], strict=True):
                key, was = (column, flat(a)), (column, flat(b))
                assert forth.setdefault(key, was) == was, (name, key)
                assert back.setdefault(was, key) == key, (name, was)


def strings(value, key=""):
    """Every string of a JSON value with the key that it stands under; keys too."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield "key", name
            yield from strings(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner, key)
    elif isinstance(value, str):
        yield key, value


def all_strings(log):
    for line in log.read_bytes().splitlines():
        yield from strings(json.loads(line))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: "-".join(log.parts[-3:-1]))
def test_a_copy_of_a_real_log_has_the_same_numbers_and_no_word_of_it(log, tmp_path):
    original, copy = copy_of(log, tmp_path)
    assert original.stat().st_size == copy.stat().st_size
    assert_equal_tables(original, copy)
    known = [*WORDS, *CATEGORY, *EVENTS, *(key.decode() for key in KEYS), "call_", "chatcmpl-"]
    said = {value for _, value in all_strings(original)}
    meant = {value for value in said if MEANT.fullmatch(value)} | set(known)
    left = {value for _, value in all_strings(copy)}
    windows = {w for value in left - meant for w in pieces(value)}
    windows -= {w for value in meant for w in pieces(value)}
    kept = {w for value in said - meant for w in pieces(value)} & windows
    assert {w for w in kept if not PREFIX.search(w) and len(set(w)) > 3} == set()


# times, versions, models, agents: what is meant to stay beside words of a closed vocabulary
MEANT = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|\d+\.\d+\.\d+|mock-model|scripted|explore|general-purpose"
)


PREFIX = re.compile(r"cmpl-|call_|agent-")  # of ids


def pieces(text, size=8):
    text = re.sub(r"<(?:exited|(?:shellId: \S+ )?completed) with exit code -?\d+>$", "", text)
    return (text[i : i + size] for i in range(len(text) - size + 1))


def test_all_logs_of_a_root_are_found_again_under_one_naming(tmp_path):
    for session in ("a", "b"):
        for root in ("x", "y"):
            lines = good_lines() if root == "x" else []
            store(tmp_path / root / session / "events.jsonl", *lines, *a_turn(20, outputTokens=3))
    (tmp_path / "x" / "c.jsonl").write_bytes(b"".join(good_lines()))
    files = find([tmp_path / "x", tmp_path / "y"]).files
    copied = redact(files, tmp_path / "copy")
    assert len(find([tmp_path / "copy"]).files) == len(files) == 5
    assert [f.parent.parent.name for f in copied.files[-2:]] == ["2", "2"]
    old, new = load([tmp_path / "x", tmp_path / "y"]), load(tmp_path / "copy")
    for column in ("llm_calls", "output_tokens", "bytes", "layout", "duplicate_events"):
        assert sorted(old.sessions[column]) == sorted(new.sessions[column])


def test_sessions_of_a_copy_can_be_told_apart_by_the_first_of_their_ids(tmp_path):
    real = HERE / "data" / "real_logs"
    redact(find([real / version for version in ("1.0.12", "1.0.65", "1.0.102")]).files, tmp_path)
    ids = load(tmp_path).sessions["session_id"]
    assert ids.str.head(8).n_unique() == len(ids) > 40


def test_a_session_under_two_roots_is_one_in_the_copy_too(tmp_path):
    lines = good_lines()
    for root in "xy":
        store(tmp_path / root / "s1" / "events.jsonl", *lines)
    redact(find([tmp_path / "x", tmp_path / "y"]).files, tmp_path / "copy")
    assert load(tmp_path / "copy").sessions["duplicate_events"].to_list() == [5]


# --- damage -------------------------------------------------------------------------------

NULS = {"nul line": b"\0" * 40 + b"\n", "bom": b"\xef\xbb\xbf" + good_lines()[0]}
TORN = {f"torn at {n}": event("user.message", 5, content="my secret words")[:n] + b"\n" for n in
        (1, 5, 12, 25, 60, 90)}  # fmt: skip
ODD = {
    "text": b"just my secret words\n", "array": b'["my secret words"]\n', "number": b"17\n",
    "no type": b'{"data":{"my secret words":1}}\n', "blank": b" \n", "tail": b'secret words"}\n',
    "beside": event("user.message", 5, content="my secret words")[:50] + a_turn(5)[0],
    "after": a_turn(5)[0][:-1] + b"my secret words\n",
    "nan": a_turn(5, outputTokens=3)[1].replace(b":3", b":NaN"),
    "wrong types": event("tool.execution_start", 5, toolCallId={"my secret words": 1},
                         toolName=["my secret words"]),
    "deep": event("user.message", 5, content=0).replace(b":0", b":" + DEEP),
    **{f"in text: {name}": tool_end(5, result="my secret words <>").replace(b"<>", raw)
       for name, raw in BROKEN.items()},
}  # fmt: skip


@pytest.mark.parametrize(
    "damage", (NULS | TORN | ODD | FIRST).values(), ids=NULS | TORN | ODD | FIRST
)
@pytest.mark.parametrize("first", [True, False])
def test_damage_stays_damage(damage, first, tmp_path):
    lines = [*good_lines(), tool_start(3, arguments={"command": "ls"}), tool_end(4)]
    lines.insert(0 if first else 3, damage)
    if not first:
        lines[-1] = lines[-1][:-20]
    original, copy = copy_of(store(tmp_path / "s1" / "events.jsonl", *lines), tmp_path / "t")
    data = copy.read_bytes()
    for word in (b"secret", b"words"):
        assert word not in data
    same = [[line.reason for line in decode(f.read_bytes()).rejected] for f in (original, copy)]
    assert same[0] == same[1]
    if b"\xff" in damage or b"NaN" in damage:  # mended by what is longer
        same = [load(f).llm_calls.select("status", "llm_ms") for f in (original, copy)]
        assert same[0].equals(same[1])
    else:
        assert_equal_tables(original, copy)


KINDS = st.sampled_from([*FIELDS, "session.info", "model.unheard_of", "result"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from([k.decode() for k in sorted(KEYS)]) | st.text(max_size=9),
                      inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    kind=KINDS,
    data=st.dictionaries(st.sampled_from([k.decode() for k in sorted(KEYS)]), VALUES, max_size=6),
    cut=st.none() | st.integers(1, 200),
    ascii_=st.booleans(),
)
def test_of_any_line_length_shape_and_fate_stay(kind, data, cut, ascii_):
    text = json.dumps({"type": kind, "data": data, "id": "i"}, ensure_ascii=ascii_)
    line = text.encode("utf-8", "surrogatepass")[:cut]
    new = Redactor().line(line)
    before, after = decode(line), decode(new)
    assert len(before.events) == len(after.events)
    assert [r.reason for r in before.rejected] == [r.reason for r in after.rejected]
    if before.events:
        assert type(before.events[0]) is type(after.events[0])


# --- secrets ------------------------------------------------------------------------------

# made here, so that no scanner finds this file
PLANTED = [
    "AKIA" + "IOSFODNN7" + "EXAMPLQ", "ghp_" + "a8Kd93JfLq0Zx7Tn5Vw2Rb6Yc1Ms4He3Pg9U",
    "xoxb-" + "2314567890-2314567890-" + "Xk3Jd9Lq0Zx7Tn5Vw2Rb6Yc1", "hunter2-" + "sw0rdfish-9Q",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N",
    "https://dev:" + "pa55-w0rd-77@git.corp.example/x", "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
]  # fmt: skip


def planted(secret):
    """A secret in every string position and as a key of every type of event."""
    words = {name: secret for name in sorted(key.decode() for key in KEYS) if name != "data"}
    for kind in [*EVENTS, "model.unheard_of", secret, f"x.{secret}"]:
        flatly = {**words, secret: secret, "deep": {"password": secret, "list": [secret]}}
        yield kind, flatly
    nested = dict.fromkeys(  # noqa: RUF024 (it is written out at once)
        words, {"password": secret, secret: [secret, {"token": secret}],
                                   "content": secret, "model": secret, "kind": secret})  # fmt: skip
    yield "tool.execution_complete", nested
    yield "hook.start", {"input": {"toolArgs": json.dumps({"password": secret}), **nested}}
    yield "session.shutdown", {"modelMetrics": {secret: {}}, "agentMetrics": {secret: {}}}


def lines_with(secret, some=slice(None)):
    for kind, data in list(planted(secret))[some]:
        whole = {"type": kind, "data": data, "id": secret, "timestamp": secret, secret: secret,
                 "agentId": secret, "parentId": secret, "usage": secret}  # fmt: skip
        line = json.dumps(whole).encode()
        yield line + b"\n"
        yield line[: len(line) // 2] + b"\n"
        yield line[len(line) // 3 :] + b"\n"
        yield line.replace(b":", b"=") + b"\n"
    yield f'password = "{secret}"\n'.encode()


@pytest.mark.parametrize("secret", PLANTED, ids=range(len(PLANTED)))
def test_no_part_of_a_planted_secret_is_left(secret):
    data = b"".join(map(Redactor().line, lines_with(secret))).decode()
    assert not [i for i in range(len(secret) - 7) if secret[i : i + 8] in data]


def test_a_secret_scanner_finds_nothing_in_a_copy(tmp_path):
    many = len(PLANTED)
    lines = [
        line
        for n, secret in enumerate(PLANTED)
        for line in lines_with(secret, slice(n, None, many))
    ]
    log = store(tmp_path / PLANTED[0] / "events.jsonl", *lines)
    copy = redact(find([log]).files, tmp_path / "copy").files[0]
    assert PLANTED[0] not in str(copy)
    with default_settings():
        assert next(scan_file(str(log)))
        assert not list(scan_file(str(copy)))


def test_what_is_free_is_all_content(tmp_path):
    data = {"arguments": {"toolName": "bash", "account": 12345678901, "model": "gpt-5"},
            "toolName": "pay_for_me", "mcpServerName": "bank", "toolCallId": "c1"}  # fmt: skip
    log = store(tmp_path / "s1" / "events.jsonl", event("tool.execution_start", **data),
                event("acme.paid", account=12345678901), event("very private", a=1))  # fmt: skip
    text = redact(find([log]).files, tmp_path / "copy").files[0].read_text()
    for word in ("12345678901", "bash", "account", "gpt-5", "pay_for_me", "bank", "very private"):
        assert word not in text
    assert "acme" not in text


def test_of_types_of_events_only_those_that_are_read_stay(tmp_path):
    kinds = ["acmecorp.payroll_merger", "session.merger_with_acme", "acmecorp.payroll_merger", "x"]
    lines = [*good_lines(), *(event(kind, 5, content="hi") for kind in kinds)]
    original, copy = copy_of(store(tmp_path / "s1" / "events.jsonl", *lines), tmp_path / "t")
    assert_equal_tables(original, copy)
    assert b"merger" not in copy.read_bytes()
    before, after = (load(log, events=True).events["type"].to_list() for log in (original, copy))
    assert after[: -len(kinds)] == before[: -len(kinds)]
    assert not {*after[-len(kinds) :]} & {*kinds}
    assert [*map(after.index, after)] == [*map(before.index, before)]


def test_numbers_of_arguments_and_results_are_content_too():
    """Different ones stay different, so that equal arguments can be told."""
    lines = [event("tool.execution_start", arguments={"pin": pin, "of": [pin, 0.25, -pin, 1e9]})
             for pin in range(1, 2000)]  # fmt: skip
    redactor = Redactor()
    copies = [json.loads(redactor.line(line)) for line in lines]
    pins = [next(iter(copy["data"]["arguments"].values())) for copy in copies]
    assert len(set(pins)) == 1999
    assert [len(str(pin)) for pin in pins] == [len(str(pin)) for pin in range(1, 2000)]
    for data in ({"result": 4111}, {"result": [4111]}, {"result": {"content": {"n": 4111}}},
                 {"result": {"content": 4111}}, {"result": {"other": 4111}}):  # fmt: skip
        assert b"4111" not in redactor.line(event("tool.execution_complete", **data))


@pytest.mark.parametrize("model", ["gpt-5-mini", "claude-sonnet-4.5", "o3", "gemini-2.5-pro"])
def test_names_of_public_models_stay_and_others_do_not(model):
    line = event("session.model_change", newModel=model)
    assert model.encode() in Redactor().line(line)
    for private in (f"{model}-acme-merger", "acme-7b", f"{model}-9f8a7b6c5d4e3f"):
        assert private.encode() not in Redactor().line(
            event("session.model_change", newModel=private)
        )


def test_a_replacement_can_not_be_computed_from_the_value():
    """It depends on what stood before it alone."""
    one, other = (event("user.message", content=text) for text in ("first text", "other text"))
    assert Redactor().line(one)[:70] == Redactor().line(other)[:70]
    redactor = Redactor()
    redactor.line(one)
    assert b"text2" in redactor.line(other)


# --- times and places ---------------------------------------------------------------------


def test_shift_moves_all_times_alike(tmp_path):
    log = HERE / "data" / "real_logs" / "1.0.102" / "resume" / "events.jsonl"
    original, copy = copy_of(log, tmp_path, shift=timedelta(days=-100))
    before, after = load(original), load(copy)
    for name in ("llm_calls", "tool_calls", "sessions", "interactions"):
        old, new = before.table(name), after.table(name)
        assert (old["started_at"] - timedelta(days=100)).equals(new["started_at"])
    same = ("wall_ms", "llm_ms", "tool_ms", "bytes")
    assert before.sessions.select(same).equals(after.sessions.select(same))
    assert "2026-12" not in copy.read_text()
    assert "17960" not in copy.read_text()  # the same time in milliseconds


def test_a_time_of_thousands_of_digits_is_not_moved():
    line = event("session.shutdown", sessionStartTime=1).replace(b":1,", b":1" + b"0" * 5000 + b",")
    line = line.replace(b":1}", b":1" + b"0" * 5000 + b"}")
    assert b"1" + b"0" * 5000 in Redactor(timedelta(days=1)).line(line)


def test_the_command_writes_a_copy_and_never_over_anything(cli, tmp_path):
    log = store(tmp_path / "s1" / "events.jsonl", *good_lines())
    code, out, err = cli("redact", log.parent, "-o", tmp_path / "copy")
    assert (code, out) == (0, "")
    assert "1 log," in err
    copy = find([tmp_path / "copy"]).files[0].path
    assert cli("redact", log, "-o", tmp_path / "copy")[0] == 1
    assert cli("redact", log, "-o", log)[0] == 1
    assert cli("redact", log, "-o", tmp_path / "copy", "--force", "--shift", "2d")[0] == 0
    assert b"2026-03-03" in Path(copy).read_bytes()
    assert cli("redact", log, "-o", tmp_path / "new", "--shift", "soon")[0] == 2
    assert cli("redact", tmp_path / "none", "-o", tmp_path / "new")[0] == 1
    assert not (tmp_path / "new").exists()


def test_a_copy_never_overwrites_its_original(cli, tmp_path):
    log = store(tmp_path / "0" / "events.jsonl", *good_lines())
    before = log.read_bytes()
    code, _, err = cli("redact", log, "-o", tmp_path, "--force")
    assert (code, log.read_bytes()) == (1, before)
    assert "overwrite" in err
