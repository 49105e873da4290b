"""The directory of a session, what stands in it beside the log, and the list of sessions."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from copilot_insights.errors import InsightsError
from copilot_insights.runner.log import iso, parse_event

if TYPE_CHECKING:
    from pathlib import Path

    from copilot_insights.runner.log import Event
    from copilot_insights.runner.session import Settings

HEAD_LINES = 50
"""The first user message is looked for in so many lines."""

NAME_LENGTH = 80
LONGEST_ID = 255
"""In bytes: it is the name of a directory."""

logger = logging.getLogger(__name__)


def session_directory(home: Path, session_id: str) -> Path:
    """Where a session lives.

    Raises:
        InsightsError: the id is no plain name, and could lead anywhere.
    """
    plain = all(c.isalnum() or c in "-_." for c in session_id)
    if not session_id or not plain or session_id.startswith("."):
        raise InsightsError(f"{session_id[:LONGEST_ID]!r} is no session id")
    if len(session_id.encode()) > LONGEST_ID:
        raise InsightsError(f"A session id of more than {LONGEST_ID} bytes: {session_id[:20]}…")
    return home / "session-state" / session_id


def work_context(cwd: Path) -> dict[str, str]:
    """`{cwd, gitRoot?, branch?}` of a directory, without running git."""
    context = {"cwd": str(cwd)}
    for place in (cwd, *cwd.parents):
        head = place / ".git" / "HEAD"
        if head.is_file():
            context["gitRoot"] = str(place)
            reference = ""
            with suppress(OSError):  # no reason to refuse the session
                reference = head.read_text(encoding="utf-8", errors="replace").strip()
            if reference.startswith("ref: refs/heads/"):
                context["branch"] = reference.removeprefix("ref: refs/heads/")
            break
    return context


def write_workspace(directory: Path, start: Event, first: Event, settings: Settings) -> None:
    """Write `workspace.yaml`, once: id, place and name, as the CLI has it. JSON is YAML."""
    path = directory / "workspace.yaml"
    if path.exists():
        return
    context = start["data"].get("context") or {}
    lines = {
        "id": directory.name,
        "cwd": context.get("cwd"),
        **({"git_root": context["gitRoot"]} if "gitRoot" in context else {}),
        **({"branch": context["branch"]} if "branch" in context else {}),
        "client_name": settings.client_name,
        "name": settings.name or first["data"]["content"][:NAME_LENGTH],
        "user_named": settings.name is not None,
        "created_at": start["data"].get("startTime"),
        "updated_at": first["timestamp"],
    }
    try:
        path.write_text(
            "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items()),
            encoding="utf-8",
        )
    except OSError:
        logger.warning("%s could not be written", path)


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
        with path.open("rb") as file:
            read = (parse_event(line) for line in islice(file, HEAD_LINES))
            head = [event for event in read if event]
    except OSError:
        return None
    if not head or head[0]["type"] != "session.start":
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
        if event["type"] == "user.message":
            entry["summary"] = entry["name"] = str(event["data"].get("content"))[:NAME_LENGTH]
            break
    return entry
