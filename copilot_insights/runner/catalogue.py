"""The sessions of a home directory, as `session.list` shows them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from copilot_insights.runner.log import iso

if TYPE_CHECKING:
    from pathlib import Path

HEAD_LINES = 50
"""The first user message is looked for in so many lines."""


def list_sessions(home: Path) -> list[dict[str, Any]]:
    """The sessions of a home, the one that was written last first."""
    entries = [describe_session(path.parent) for path in home.glob("session-state/*/events.jsonl")]
    return sorted(
        (entry for entry in entries if entry), key=lambda e: e["modifiedTime"], reverse=True
    )


def describe_session(directory: Path) -> dict[str, Any] | None:
    """`{sessionId, startTime, modifiedTime, isRemote, summary?, context}` of a session.

    None if there is no log, or one that does not begin as a log does.
    """
    path = directory / "events.jsonl"
    try:
        modified = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        with path.open(encoding="utf-8", errors="replace") as file:
            head = [json.loads(line) for line, _ in zip(file, range(HEAD_LINES), strict=False)]
    except (OSError, ValueError):
        return None
    if not head or head[0].get("type") != "session.start":
        return None
    start = head[0]["data"]
    entry = {
        "sessionId": directory.name,
        "startTime": start.get("startTime"),
        "modifiedTime": iso(modified),
        "isRemote": False,
        "isDetached": False,
        "context": start.get("context") or {},
    }
    for event in head:
        if event.get("type") == "user.message":
            entry["summary"] = entry["name"] = str(event["data"].get("content"))[:80]
            break
    return entry
