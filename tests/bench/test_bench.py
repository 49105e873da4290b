"""The benchmark runs; how fast is for people to read (see the README)."""

import json
import subprocess
import sys
from pathlib import Path


def test_the_benchmark_runs_on_a_small_corpus():
    done = subprocess.run(
        [
            sys.executable,
            Path(__file__).parent / "bench.py",
            "--megabytes",
            "3",
            "--repeat",
            "1",
            "--json",
        ],
        capture_output=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["events"] > 1000
    assert {"report", "loop", "grep"} <= set(found["seconds"])
