"""How fast the whole report is, beside the least that reading the same logs could cost.

    python tests/bench/bench.py [--megabytes 500] [--repeat 5]

Writes a corpus of its own (once, under .corpus) out of the real logs in tests/data: sessions
of some hundred to some thousand events with ids of their own. Then it times, in turn and
several times over, whole cold processes:

    report   copilot-insights report CORPUS --json --no-cache
    again    the same with what the cache kept of the time before
    decode   only the first step of the report, on all cores: reading and typed decoding
    loop     one process that decodes the envelope of each line with msgspec, and no more
    grep     grep -c assistant.turn_start over the same files (one way to count calls)
    jq       jq -c .type over the same files

and prints the medians, their ratio to the loop, and the report's peak memory, summed over
its processes.
"""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path

HERE = Path(__file__).parent
LOGS = HERE.parent / "data" / "real_logs"
ENVIRONMENT = {**os.environ, "XDG_CACHE_HOME": str(HERE / ".corpus" / "cache")}

LOOP = """
import sys, msgspec, pathlib
class Envelope(msgspec.Struct):
    type: str
    id: str = ""
    timestamp: str = ""
    parentId: str | None = None
    agentId: str | None = None
decode = msgspec.json.Decoder(Envelope).decode
n = 0
for path in pathlib.Path(sys.argv[1]).glob("*/events.jsonl"):
    with path.open("rb") as file:
        for line in file:
            decode(line)
            n += 1
print(n)
"""

# the least that the report could take, were its tables made in no time
DECODE = """
import subprocess, sys, polars
from pathlib import Path
from copilot_insights.decoder import decode
root, part, parts = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
others = [] if part else [
    subprocess.Popen([sys.executable, "-c", sys.argv[4], root, str(n), sys.argv[3]])
    for n in range(1, parts)
]
for path in sorted(root.glob("*/events.jsonl"))[part::parts]:
    decode(path.read_bytes())
for other in others:
    other.wait()
"""


def corpus(megabytes: int) -> Path:
    """Sessions of one CLI version each, a few to many real runs behind each other."""
    root = HERE / ".corpus" / str(megabytes)
    if (root / "done").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    rng = random.Random(7)
    runs: dict[str, list[list[bytes]]] = {}
    for path in sorted(LOGS.glob("*/*/events.jsonl")):
        lines = path.read_bytes().split(b"\n")[:-1]
        if sum(map(len, lines)) / len(lines) < 900:  # about 500 B an event in all
            runs.setdefault(path.parts[-3], []).append(lines)
    size = 0
    while size < megabytes * 1_000_000:
        session = str(uuid.UUID(int=rng.getrandbits(128)))
        number = rng.randint(4, 60)
        lines = []
        version = rng.choice(sorted(runs))
        for index in range(number):
            part = rng.choice(runs[version])
            first = 0 if index == 0 else 1
            last = len(part) if index == number - 1 or b"session.shutdown" not in part[-1] else -1
            tag = f"{rng.getrandbits(32):08x}".encode()
            for raw in part[first:last]:
                line = re.sub(rb'"id":"[0-9a-f]{8}-', b'"id":"' + tag + b"-", raw)
                lines.append(re.sub(rb"call_([0-9a-f]{4})[0-9a-f]{8}", rb"call_\g<1>" + tag, line))
        lines[0] = re.sub(
            rb'"sessionId":"[^"]*"', b'"sessionId":"' + session.encode() + b'"', lines[0]
        )
        text = b"\n".join(lines) + b"\n"
        folder = root / session
        folder.mkdir(parents=True)
        (folder / "events.jsonl").write_bytes(text)
        size += len(text)
    (root / "done").touch()
    return root


def tree_memory(pid: int) -> int:
    """Resident bytes of a process and its children now, shared pages once (Linux PSS)."""
    total, todo = 0, [pid]
    while todo:
        one = todo.pop()
        try:
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
            total += 1024 * int(rollup.split("Pss:")[1].split()[0])
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except (OSError, IndexError):
            continue
    return total


def timed(command: list[str], *, memory: bool = False) -> tuple[float, int]:
    """Seconds of a whole process, and its peak resident bytes where asked for."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    peak = 0
    while memory and process.poll() is None:
        peak = max(peak, tree_memory(process.pid))
        time.sleep(0.01)
    if process.wait():
        sys.exit(f"{command[0]} failed")
    return time.perf_counter() - start, peak


def main() -> None:
    """Runs it all and prints a table, and with --json the figures."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--megabytes", type=int, default=500)
    arguments.add_argument("--repeat", type=int, default=5)
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    root = corpus(options.megabytes)
    files = sorted(str(p) for p in root.glob("*/events.jsonl"))
    size = sum(Path(f).stat().st_size for f in files)
    python = sys.executable
    listing = HERE / ".corpus" / "files"
    listing.write_bytes(b"\0".join(f.encode() for f in files))
    report = [python, "-m", "copilot_insights.cli", "report", str(root), "--json"]
    timed(report)  # fills the cache
    commands = {
        "report": [*report, "--no-cache"],
        "again": report,
        "decode": [python, "-c", DECODE, str(root), "0", str(os.cpu_count()), DECODE],
        "loop": [python, "-c", LOOP, str(root)],
        "grep": ["xargs", "-0", "-a", str(listing), "grep", "-c", '"type":"assistant.turn_start"'],
    }
    if shutil.which("jq"):
        commands["jq"] = ["xargs", "-0", "-a", str(listing), "jq", "-c", ".type"]
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for round_ in range(options.repeat):
        for name, command in commands.items():
            if name != "jq" or round_ == 0:  # it takes too long to repeat
                seconds[name].append(timed(command)[0])
    peak = timed(commands["report"], memory=True)[1]
    events = int(subprocess.run(commands["loop"], capture_output=True, check=True).stdout)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    if options.json:
        print(json.dumps({"bytes": size, "events": events, "seconds": medians, "peak": peak}))
        return
    print(f"{size / 1e6:.0f} MB, {events:,} events, {len(files)} sessions, {os.cpu_count()} cores")
    for name, value in medians.items():
        ratio, speed = value / medians["loop"], size / value / 1e6
        print(f"{name:8}{value:7.2f} s   x {ratio:.2f}   {speed:6.0f} MB/s")
    print(f"peak memory of report, all processes: {peak / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
