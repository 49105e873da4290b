"""Where logs are found, in every layout and place, and what is not a log."""

import io
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from types import SimpleNamespace

import pytest

from copilot_insights import InsightsError, discover, load
from copilot_insights.discover import find

SAMPLES = Path(__file__).parent.parent / "sample_logs"
AT = '"timestamp":"2026-03-01T10:00:00.000Z"'
START = '{"type":"session.start","data":{"sessionId":"s"},"id":"1",' + AT + "}\n"
USER = '{"type":"user.message","data":{"content":"hi"},"id":"2",' + AT + "}\n"
RESULT = '{"type":"result","timestamp":"2026-03-01T10:00:02.000Z","sessionId":"s","exitCode":0}\n'
SPAN = '{"type":"span","traceId":"1","name":"chat","startTime":[1,2]}\n'
METRIC = '{"type":"metric","name":"gen_ai.client.token.usage","data":{}}\n'


def put(path, text=START + USER):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def names(*paths):
    return [(file.name, file.layout) for file in find(paths).files]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory of our own, and no variable that says otherwise."""
    for name in ("COPILOT_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


# --- the CLI's own places -----------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        ".copilot/session-state",
        ".copilot/history-session-state",
        ".local/state/.copilot/session-state",
        ".local/state/.copilot/history-session-state",
        ".config/.copilot/session-state",
        ".config/copilot/history-session-state",
    ],
)
def test_without_a_path_the_places_of_the_cli_are_read(home, place):
    put(home / place / "new" / "events.jsonl")
    put(home / place / "old.jsonl")
    assert names() == [("new", "directory"), ("old", "flat")]


def test_all_of_these_places_are_read_at_once(home):
    put(home / ".copilot/session-state/a/events.jsonl")
    put(home / ".copilot/history-session-state/b.jsonl")
    put(home / ".local/state/.copilot/history-session-state/c.jsonl")
    assert [name for name, _ in names()] == ["a", "b", "c"]


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "XDG_CONFIG_HOME"])
def test_xdg_variables_move_the_old_places(home, monkeypatch, variable):
    monkeypatch.setenv(variable, str(home / "elsewhere"))
    put(home / "elsewhere" / ".copilot" / "session-state" / "a" / "events.jsonl")
    assert names() == [("a", "directory")]


def test_copilot_home_is_the_only_place_when_it_is_set(home, monkeypatch):
    put(home / ".copilot" / "session-state" / "not-this" / "events.jsonl")
    put(home / "mine" / "session-state" / "this" / "events.jsonl")
    monkeypatch.setenv("COPILOT_HOME", str(home / "mine"))
    assert names() == [("this", "directory")]


def test_where_was_looked_is_said_when_nothing_is_there(home, monkeypatch):
    with pytest.raises(InsightsError, match="COPILOT_HOME") as error:
        find()
    assert str(home / ".copilot") in error.value.message
    assert str(home / ".local" / "state" / ".copilot") in error.value.message
    monkeypatch.setenv("COPILOT_HOME", str(home / "mine"))
    with pytest.raises(InsightsError) as error:
        find()
    assert str(home / "mine") in error.value.message
    assert str(home / ".copilot") not in error.value.message


# --- paths --------------------------------------------------------------------------------


def test_a_log_a_session_a_folder_of_sessions_and_a_root_are_the_same(tmp_path):
    log = put(tmp_path / "session-state" / "a" / "events.jsonl")
    for path in (log, log.parent, log.parent.parent, tmp_path, str(tmp_path) + os.sep):
        assert names(path) == [("a", "directory")]


def test_several_roots_at_once_and_each_log_once(tmp_path):
    a = put(tmp_path / "one" / "session-state" / "a" / "events.jsonl")
    b = put(tmp_path / "two" / "b.jsonl")
    roots = [tmp_path / "one", tmp_path / "two", a, b, b, tmp_path / "one" / "session-state"]
    assert names(*roots) == [("a", "directory"), ("b", "flat")]
    assert names(tmp_path) == [("a", "directory"), ("b", "flat")]  # roots side by side


@pytest.mark.parametrize("pattern", ["*", "?/events.jsonl", "**/events.jsonl", "[ab]"])
def test_a_glob_is_expanded_even_when_quoted(tmp_path, pattern):
    for name in ("a", "b"):
        put(tmp_path / name / "events.jsonl")
    assert names(tmp_path / pattern) == [("a", "directory"), ("b", "directory")]


def test_a_name_with_the_signs_of_a_glob_is_a_name(tmp_path):
    put(tmp_path / "[x]*" / "events.jsonl")
    assert names(tmp_path / "[x]*") == [("[x]*", "directory")]


@pytest.mark.parametrize("name", ["with space", "ünïcödé 日本", "-", "--help", "a'b\"c", "#1%20"])
def test_any_name_is_fine(tmp_path, monkeypatch, name):
    put(tmp_path / name / "events.jsonl")
    assert names(tmp_path / name) == [(name, "directory")]
    assert load([tmp_path / name]).sessions.height == 1
    monkeypatch.chdir(tmp_path)
    assert names(f"./{name}/events.jsonl", ".") == [(name, "directory")]
    monkeypatch.chdir(tmp_path / name)
    assert names(".") == names("events.jsonl") == [(name, "directory")]


def test_the_tilde_is_the_home(home):
    put(home / "logs" / "a" / "events.jsonl")
    assert names("~/logs") == [("a", "directory")]


def test_a_file_that_a_user_names_is_read_whatever_it_is_called(tmp_path):
    assert names(put(tmp_path / "saved.txt")) == [("saved", "flat")]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("none", "no such file or directory: {}/none"),
        ("file/below", "no such file or directory: {}/file/below"),
        ("*.log", "nothing matches {}/*.log"),
        ("empty", "no session logs in {}/empty"),
    ],
)
def test_a_path_with_nothing_says_which(tmp_path, path, said):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InsightsError) as error:
        find([tmp_path / path])
    assert error.value.message == said.format(tmp_path)
    assert error.value.hint
    assert error.value.exit_code == 1


# --- layouts ------------------------------------------------------------------------------


def test_layouts_are_told_apart(tmp_path):
    put(tmp_path / "directory" / "events.jsonl")
    put(tmp_path / "flat.jsonl")
    put(tmp_path / "stdout.jsonl", USER + RESULT)
    assert names(tmp_path) == [
        ("directory", "directory"),
        ("flat", "flat"),
        ("stdout", "stdout"),
    ]


def test_standard_input_is_a_stream(monkeypatch):
    discover._stdin.cache_clear()  # noqa: SLF001 (it is read once in a process)
    stdin = SimpleNamespace(buffer=io.BytesIO((USER + RESULT).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert names("-") == [("stdin", "stdout")]
    assert load(["-"]).sessions["session_id"].to_list() == ["s"]
    discover._stdin.cache_clear()  # noqa: SLF001


def test_standard_input_beside_a_root(tmp_path):
    put(tmp_path / "a" / "events.jsonl")
    assert names(tmp_path, "-") == [("a", "directory"), ("stdin", "stdout")]


@pytest.mark.parametrize(
    "text",
    [
        SPAN,
        METRIC,
        '{"resourceSpans":[]}\n',
        '{"command":"ls"}\n',
        '{"type":"summary","id":"1"}\n',
        "[1,2]\n",
        "3\n",
        "hello\n",
        "",
        "\n\n",
    ],
)
def test_other_jsonl_beside_sessions_is_not_a_log(tmp_path, text):
    put(tmp_path / "session-state" / "a" / "events.jsonl")
    put(tmp_path / "session-state" / "other.jsonl", text)
    put(tmp_path / "otel.jsonl", text)
    assert names(tmp_path) == [("a", "directory")]


@pytest.mark.parametrize(
    "before", ["\ufeff", "\n\r\n", "\0\0\0\n", '{"type":"session.start","da\n']
)
def test_a_loose_log_with_a_damaged_beginning_is_a_log(tmp_path, before):
    put(tmp_path / "a.jsonl", before + START + USER)
    assert [name for name, _ in names(tmp_path)] == ["a"]


def test_copies_and_folders_without_events_are_not_sessions(tmp_path):
    put(tmp_path / "session-state" / "a" / "events.jsonl")
    put(tmp_path / "session-state" / "a" / "rewind-snapshots" / "1" / "events.jsonl")
    put(tmp_path / "session-state" / "b" / "rewind-snapshots" / "events.jsonl")
    put(tmp_path / "session-state" / "c" / "workspace.yaml", "id: c")
    put(tmp_path / "session-state" / "c" / "files" / "deep" / "events.jsonl")
    (tmp_path / "session-state" / "d").mkdir()
    put(tmp_path / "session-state" / ".hidden" / "events.jsonl")
    assert names(tmp_path) == [("a", "directory")]


def test_an_events_file_that_is_a_folder_is_no_log(tmp_path):
    put(tmp_path / "a" / "events.jsonl")
    (tmp_path / "b" / "events.jsonl").mkdir(parents=True)
    assert names(tmp_path) == [("a", "directory")]


# --- hard cases ---------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights there")
def test_links_are_followed_once_and_never_in_circles(tmp_path):
    log = put(tmp_path / "session-state" / "a" / "events.jsonl")
    (tmp_path / "session-state" / "again").symlink_to(log.parent)
    (tmp_path / "session-state" / "self").symlink_to("self")
    (tmp_path / "session-state" / "up").symlink_to(tmp_path)
    (tmp_path / "session-state" / "dangling").symlink_to("nowhere")
    (tmp_path / "session-state" / "gone.jsonl").symlink_to("nowhere.jsonl")
    found = find([tmp_path, tmp_path / "session-state"])
    assert [os.path.realpath(file.path) for file in found.files] == [str(log)]


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights there")
@pytest.mark.parametrize("target", ["loop", "nowhere"])
def test_a_link_to_nothing_is_said_like_any_other_place(tmp_path, target):
    (tmp_path / "loop").symlink_to(target)
    with pytest.raises(InsightsError, match="loop"):
        find([tmp_path / "loop"])


def test_a_folder_that_cannot_be_read_is_told_beside_the_others(tmp_path, monkeypatch):
    put(tmp_path / "open" / "a" / "events.jsonl")
    (tmp_path / "shut").mkdir()
    walk = type(tmp_path).iterdir

    def guarded(path):  # tests may run as root, whom no mode keeps out
        if path.name == "shut":
            raise PermissionError(13, "Permission denied")
        return walk(path)

    monkeypatch.setattr(type(tmp_path), "iterdir", guarded)
    found = find([tmp_path / "open", tmp_path / "shut"])
    assert len(found.files) == 1
    assert found.problems == [f"cannot read {tmp_path / 'shut'}: Permission denied"]
    assert load([tmp_path / "open", tmp_path / "shut"]).problems == found.problems
    with pytest.raises(InsightsError, match=r"shut.*Permission denied"):
        find([tmp_path / "shut"])


@pytest.fixture
def shut():
    """A root with a log, into which this user may not look."""
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        root = Path(place) / "shut"
        put(root / "session-state" / "a" / "events.jsonl")
        root.chmod(0)
        user = os.geteuid()
        if not user:  # whom no mode keeps out
            os.seteuid(65534)
        yield root
        os.seteuid(user)
        root.chmod(0o700)


@pytest.mark.skipif(sys.platform == "win32", reason="has other rights")
def test_a_place_that_may_not_be_looked_into_is_a_line(shut, monkeypatch):
    for place in (shut / "session-state", shut / "session-state" / "a", shut / "*.jsonl"):
        with pytest.raises(InsightsError, match=r"cannot look for .*shut.*: Permission denied"):
            find([place])
    with pytest.raises(InsightsError, match=r"no session logs in .*\(cannot read .*shut: Perm"):
        find([shut])
    monkeypatch.setenv("COPILOT_HOME", str(shut))
    with pytest.raises(InsightsError, match=r"no session logs in .*\(cannot read .*shut: Perm"):
        find()


@pytest.mark.parametrize("name", ["long" * 80, "long" * 80 + "/x", "~nosuchuser/x"])
@pytest.mark.parametrize(
    "words", [["report"], ["show"], ["compare", SAMPLES], ["redact", "-o", "d"]]
)
def test_what_can_be_no_path_is_a_line(cli, words, name):
    code, out, err = cli(*words, name)
    assert (code, out) == (1, "")
    assert "File name too long" in err or "no home directory for ~nosuchuser/x" in err
    assert err.count("\n") == 1


def test_a_user_without_a_home_is_told_to_name_a_path(cli, tmp_path, monkeypatch):
    pwd = pytest.importorskip("pwd")

    def nobody(uid):
        raise KeyError(uid)

    for name in ("HOME", "COPILOT_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    log = put(tmp_path / "a" / "events.jsonl")
    monkeypatch.setattr(discover, "_stdin", log.read_bytes)
    assert [file.name for file in find(["-"]).files] == ["stdin"]
    assert cli("report", log)[::2] == (0, "")
    where = ["export", "otel", "--endpoint", "http://127.0.0.1:9", log]
    for words in (["report"], ["watch", "--once"], where):
        code, _, err = cli(*words)
        assert code == 1
        assert "no home directory" in err
        assert err.count("\n") == 1


def test_thousands_of_entries_are_a_moment(tmp_path):
    for number in range(3000):
        (tmp_path / "session-state" / f"{number:04}" / "files").mkdir(parents=True)
        if number % 3 == 0:
            (tmp_path / "session-state" / f"{number:04}" / "events.jsonl").touch()
    begin = perf_counter()
    assert len(find([tmp_path]).files) == 1000
    assert perf_counter() - begin < 2  # some 30 ms on a machine that does nothing else


def test_the_order_is_that_of_the_paths_and_then_of_the_names(tmp_path):
    for name in ("b", "c", "a"):
        put(tmp_path / "two" / name / "events.jsonl")
        put(tmp_path / "one" / f"{name}1" / "events.jsonl")
    found = [name for name, _ in names(tmp_path / "two", tmp_path / "one")]
    assert found == ["a", "b", "c", "a1", "b1", "c1"]
