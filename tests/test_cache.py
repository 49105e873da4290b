"""Tables kept for the next time: always what a fresh read gives, whatever happened meanwhile."""

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from copilot_insights import cache, load, loading
from copilot_insights.cache import KEPT, Cache
from copilot_insights.follow import Follower
from copilot_insights.schema import TABLES

ROOT = Path(__file__).parent.parent
SAMPLES = sorted(ROOT.glob("sample_logs/*/events.jsonl"))
LONG_AGO = 1_700_000_000


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """What is kept only of many megabytes is kept of everything."""
    monkeypatch.setattr(loading, "_WORTH_A_CACHE", 0)
    monkeypatch.setattr(cache, "_WORTH", 0)
    monkeypatch.setattr(cache, "_SETTLED", -1)


def write(path, data, at=LONG_AGO):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (at, at))


@pytest.fixture
def home(tmp_path):
    """The samples, as logs that have been there for long."""
    for path in SAMPLES:
        write(tmp_path / "home" / path.parent.name / "events.jsonl", path.read_bytes())
    return tmp_path / "home"


def same(one, other):
    return all(one.table(name).equals(other.table(name)) for name in KEPT)


def reads(monkeypatch):
    """The logs that are read, as they are."""
    read, seen = loading.read, []

    def spy(files, **how):
        seen.extend(Path(file.path).parent.name for file in files)
        return read(files, **how)

    monkeypatch.setattr(loading, "read", spy)
    return seen


def test_what_has_not_changed_is_not_read_again(home, tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    fresh = load(home)
    assert same(load(home, cache=kept), fresh)
    seen = reads(monkeypatch)
    assert same(load(home, cache=kept), fresh)
    assert seen == []
    log = home / "tools-1.0.102" / "events.jsonl"
    data = log.read_bytes()
    write(log, data[: data.rfind(b"\n", 0, -1) + 1], LONG_AGO + 1)
    assert same(load(home, cache=kept), load(home))
    assert seen[0] == "tools-1.0.102"
    seen.clear()
    again = load(home / "tools-1.0.102", cache=kept)  # another way to the same log
    assert seen == []
    assert again.sessions["path"].to_list() == [str(log)]
    monkeypatch.chdir(home)
    assert load("tools-1.0.102", cache=kept).sessions["path"].to_list() == [
        "tools-1.0.102/events.jsonl"
    ]
    assert seen == []


def test_a_log_that_was_just_written_is_read_again(home, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_SETTLED", 10**8)
    time.sleep(0.2)
    log = home / "tools-1.0.102" / "events.jsonl"
    log.touch()
    load(home, cache=tmp_path / "kept")
    seen = reads(monkeypatch)
    load(home, cache=tmp_path / "kept")
    assert seen == ["tools-1.0.102"]


def test_columns_and_tables_that_are_not_wanted_are_kept_too(home, tmp_path):
    narrow = {"llm_calls": ["llm_ms"]}
    load(home, only=narrow, cache=tmp_path)
    assert same(load(home, cache=tmp_path), load(home))
    again, fresh = load(home, only=narrow, cache=tmp_path), load(home, only=narrow)
    assert again.llm_calls.equals(fresh.llm_calls)
    assert again.llm_calls.columns == ["session_id", "llm_ms"]
    assert again.tool_calls.equals(fresh.tool_calls)


def test_a_log_whose_mode_changes_is_read_again(home, tmp_path, monkeypatch):
    """It may be one that must not be read any more."""
    load(home, cache=tmp_path / "kept")
    (home / "tools-1.0.102" / "events.jsonl").chmod(0)
    seen = reads(monkeypatch)
    load(home, cache=tmp_path / "kept")
    assert seen == ["tools-1.0.102"]


def test_the_events_table_is_always_read(home, tmp_path):
    load(home, cache=tmp_path)
    assert load(home, events=True, cache=tmp_path).events.equals(load(home, events=True).events)


def test_little_is_read_anew_and_not_kept(home, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "_WORTH_A_CACHE", 10**6)
    load(home, cache=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


CHANGES = st.tuples(
    st.sampled_from(["grow", "cut", "replace", "remove", "copy", "fork", "stream", "load", "part"]),
    st.integers(0, len(SAMPLES) - 1),
    st.integers(0, 400),
)


def change(home, what, which, size, at):
    """Changes a log, or makes another out of it."""
    log, data = home / SAMPLES[which].parent.name / "events.jsonl", SAMPLES[which].read_bytes()
    match what:
        case "grow":
            write(log, (log.read_bytes() if log.exists() else b"") + data[: size * 10], at)
        case "cut":
            write(log, data[: -size - 1], at)
        case "replace":
            write(log, SAMPLES[size % len(SAMPLES)].read_bytes(), at)
        case "remove":
            log.unlink(missing_ok=True)
        case "copy":
            write(home / f"copy-{which}" / "events.jsonl", data, at)
        case "fork":
            own = b'{"type":"user.message","id":"own-%d","data":{}}\n' % at
            write(home / f"fork-{which}" / "events.jsonl", data + own, at)
        case "stream":  # saved, and cut on both sides: it does not say its session
            lines = data.splitlines(keepends=True)[3 + size % 3 : 9]
            write(home / f"stream-{which}.jsonl", b"".join(lines), at)
    return log


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    changes=st.lists(CHANGES, min_size=1, max_size=8),
    batch=st.sampled_from([30_000, 100_000, 2**24]),
)
@example(changes=[("cut", 1, 377), ("fork", 1, 0)], batch=100_000)
def test_it_is_always_what_a_fresh_read_gives(tmp_path_factory, monkeypatch, changes, batch):
    monkeypatch.setattr(cache, "_MOST", 3)
    monkeypatch.setattr(loading, "_BATCH", batch)
    tmp_path = tmp_path_factory.mktemp("law")
    home, kept = tmp_path / "home", tmp_path / "kept"
    for path in SAMPLES:
        write(home / path.parent.name / "events.jsonl", path.read_bytes())
    load(home, cache=kept)
    for number, (what, which, size) in enumerate([*changes, ("load", 0, 0), ("load", 0, 0)]):
        log = change(home, what, which, size, LONG_AGO + 1 + number)
        if what == "part" and log.exists():
            assert same(load(log, cache=kept), load(log))
        elif what == "load":
            assert same(load(home, cache=kept), load(home))


def test_many_small_batches_become_one(home, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_MOST", 4)
    for path in sorted(home.iterdir()):
        load(path, cache=tmp_path / "kept")
    [code] = (tmp_path / "kept").iterdir()
    assert len(list(code.iterdir())) <= 5
    seen = reads(monkeypatch)
    assert same(load(home, cache=tmp_path / "kept"), load(home))
    assert len(seen) == len(SAMPLES)  # those of the fresh load


def test_the_session_store_is_looked_at_again(tmp_path, monkeypatch):
    source = ROOT / "tests" / "data" / "real_logs" / "1.0.102"
    home = tmp_path / "home"
    for name in ("hello", "tools"):
        write(
            home / "session-state" / name / "events.jsonl",
            (source / name / "events.jsonl").read_bytes(),
        )
    load(home, cache=tmp_path / "kept")
    store = home / "session-store.db"
    shutil.copy(source / "session-store.db", store)
    session = load(home / "session-state" / "tools").sessions["session_id"][0]
    change = "UPDATE assistant_usage_events SET input_tokens = 7 WHERE session_id = ?"
    for changed in (False, True):
        if changed:
            with sqlite3.connect(store) as connection:
                assert connection.execute(change, (session,)).rowcount
            connection.close()
        seen = reads(monkeypatch)
        assert same(load(home, cache=tmp_path / "kept"), load(home))
        assert "tools" in seen[:2]
        seen.clear()
        load(home, cache=tmp_path / "kept")
        assert seen == []


def test_a_session_store_in_two_places_counts_once(tmp_path):
    source = ROOT / "tests" / "data" / "real_logs" / "1.0.102"
    for root, name in (("one", "hello"), ("two", "tools")):
        log = tmp_path / root / "session-state" / name / "events.jsonl"
        write(log, (source / name / "events.jsonl").read_bytes())
        shutil.copy(source / "session-store.db", tmp_path / root)
    roots = [tmp_path / "one", tmp_path / "two"]
    one = load(roots[0]).usage.filter(source="store")
    assert one.height
    fresh = load(roots)
    assert fresh.usage.filter(source="store", session_id=one["session_id"][0]).equals(one)
    for _ in range(2):
        assert same(load(roots, cache=tmp_path / "kept"), fresh)
    os.utime(tmp_path / "two" / "session-state" / "tools" / "events.jsonl", (1, 1))
    assert same(load(roots, cache=tmp_path / "kept"), fresh)


@pytest.mark.parametrize("name", [*KEPT, "logs", "keys", "sums"])
@pytest.mark.parametrize("damage", [b"", b"PAR1", b"\0" * 4000, "cut", "gone", "bit"])
def test_a_damaged_cache_is_none_and_made_anew(home, tmp_path, monkeypatch, name, damage):
    fresh, kept = load(home), tmp_path / "kept"
    load(home, cache=kept)
    [path] = kept.glob(f"*/*/{name}")
    match damage:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:-40])
        case "bit":
            data = bytearray(path.read_bytes())
            data[len(data) // 3] ^= 1
            path.write_bytes(data)
        case _:
            path.write_bytes(damage)
    assert same(load(home, cache=kept), fresh)
    seen = reads(monkeypatch)
    assert same(load(home, cache=kept), fresh)
    assert seen == []


def test_a_place_that_cannot_be_written_is_no_trouble(home, tmp_path):
    (tmp_path / "file").write_text("not a directory")
    assert same(load(home, cache=tmp_path / "file"), load(home))
    assert same(load(home, cache=tmp_path / "file" / "below"), load(home))


def test_it_is_private_and_holds_no_content(home, tmp_path):
    log = home / "hello-1.0.102" / "events.jsonl"
    log = log if log.exists() else next(home.glob("*/events.jsonl"))
    secret = "the-secret-words"  # noqa: S105
    line = json.dumps({"type": "user.message", "id": "x", "data": {"content": secret}})
    write(log, log.read_bytes() + line.encode() + b"\n")
    load(home, cache=tmp_path / "kept")
    batches = [path for path in (tmp_path / "kept").glob("*/*") if path.is_dir()]
    assert batches
    for batch in batches:
        assert stat.S_IMODE(batch.stat().st_mode) == 0o700
        for path in set(batch.iterdir()) - {batch / "sums"}:
            for column in pl.read_parquet(path).iter_columns():
                assert secret not in str(column.to_list())


def test_other_code_keeps_its_own_and_nothing_else_is_removed(home, monkeypatch):
    kept = home  # the worst place for it
    load(home, cache=kept)
    monkeypatch.setattr(cache, "_code", lambda: "0" * 16)
    seen = reads(monkeypatch)
    load(home, cache=kept)
    assert len(seen) == len(SAMPLES)
    [old] = [p for p in kept.glob("tables-*") if p.name != "tables-" + "0" * 16]
    (kept / "tables-of-mine").mkdir()
    (kept / ("tables-" + "1" * 16)).symlink_to(home / "tools-1.0.102")
    for path in (old, *home.iterdir()):
        os.utime(path, (LONG_AGO, LONG_AGO))
    before = {path.name for path in home.iterdir()}
    write(home / "tools-1.0.102" / "events.jsonl", b'{"type":"abort","data":{}}\n')
    load(home, cache=kept)
    assert {path.name for path in home.iterdir()} == before - {old.name}
    assert (home / "tools-1.0.102" / "events.jsonl").exists()


def test_copies_in_two_places_are_not_kept_again_and_again(home, tmp_path):
    twin, kept = tmp_path / "twin", tmp_path / "kept"
    shutil.copytree(home, twin)
    for root in (home, twin):
        load(root, cache=kept)
    for _ in range(3):
        assert same(load([home, twin], cache=kept), load([home, twin]))
        assert len(list(kept.glob("*/*"))) == 2


def test_what_a_killed_process_left_is_removed(home, tmp_path):
    load(home, cache=tmp_path / "kept")
    [code] = (tmp_path / "kept").iterdir()
    for name, at in ((".old", LONG_AGO), (".new", time.time())):
        (code / name).mkdir()
        os.utime(code / name, (at, at))
    (home / "tools-1.0.102" / "events.jsonl").unlink()
    write(home / "more" / "events.jsonl", b'{"type":"abort","data":{}}\n')
    load(home, cache=tmp_path / "kept")
    assert [path.name for path in code.glob(".*")] == [".new"]


RUN = """
import sys
from copilot_insights import cache, load, loading
loading._WORTH_A_CACHE = cache._WORTH = 0
cache._SETTLED = -1
for _ in range(5):
    print(load(sys.argv[1], cache=sys.argv[2]).llm_calls.height)
"""


def test_several_at_once(home, tmp_path):
    command = [sys.executable, "-c", RUN, home, tmp_path / "kept"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {line for run in runs for line in run.communicate()[0].split()}
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert said == {str(load(home).llm_calls.height)}
    assert same(load(home, cache=tmp_path / "kept"), load(home))


def test_the_command_line_keeps_in_the_users_cache(cli, home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "xdg"))
    code, out, _ = cli("sessions", home, "--json", "--no-cache")
    assert not (tmp_path / "xdg").exists()
    assert cli("sessions", home, "--json") == (code, out, "")
    assert (tmp_path / "xdg" / "copilot-insights").is_dir()
    assert cli("sessions", home, "--json") == (code, out, "")


def test_a_watcher_takes_what_is_kept_and_keeps_no_part_of_a_log(home, tmp_path, monkeypatch):
    kept, wanted = tmp_path / "kept", {"sessions": tuple(TABLES["sessions"])}
    log = home / "tools-1.0.102" / "events.jsonl"
    write(log, log.read_bytes() + b'{"type":"torn')
    first = Follower([home], wanted=wanted, cache=Cache(kept)).poll().tables
    assert not kept.exists()
    assert load(home, cache=kept).sessions["rejected_lines"].sum() == 1
    seen = reads(monkeypatch)
    follower = Follower([home], wanted=wanted, eager=True, cache=Cache(kept))
    again = follower.poll().tables
    assert again.sessions.equals(first.sessions)
    assert again.sessions["rejected_lines"].sum() == 0
    assert seen == ["tools-1.0.102"]  # it may still be written
    seen.clear()
    write(log, log.read_bytes() + b'":1}\n', LONG_AGO + 1)
    [events] = follower.poll().tables.sessions["events"]
    assert events == load(log).sessions["events"][0]
    assert seen[:1] == ["tools-1.0.102"]


def test_without_a_home_nothing_is_kept(cli, home, monkeypatch):
    def homeless(*_, **__):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("platformdirs.user_cache_path", homeless)
    assert cli("sessions", home)[0] == 0
    assert cli("watch", home, "--once")[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes only there")
def test_paths_that_are_no_text(cli, home, tmp_path):
    odd = tmp_path / os.fsdecode(b"n\xff")
    assert same(load(home, cache=odd), load(home))
    write(home / os.fsdecode(b"n\xff") / "events.jsonl", b'{"type":"abort","data":{}}\n')
    code, _, err = cli("sessions", home)
    assert code == 0
    assert "its name is not UTF-8" in err
