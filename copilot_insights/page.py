"""A page that needs nothing else: one file in which no text of a log can run.

The policy of the page lets those scripts and styles act whose hashes it names, and no
other: nothing that slips into the markup does anything.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from copilot_insights.render import clean


@dataclass(frozen=True)
class Remote:
    """A script from elsewhere: taken only if it is the one of that hash (`sha384-…`)."""

    url: str
    integrity: str


def document(
    title: str,
    body: str,
    data: object,
    *,
    style: str,
    scripts: Sequence[str | Remote],
    styles: Sequence[str] = (),
) -> str:
    """The page: `body` is markup, `data` what the scripts find as JSON in the element `data`.
    `styles` are further style sheets, which a script adds.
    """
    inline = " ".join(f"'{_hash(s)}'" if isinstance(s, str) else s.url for s in scripts)
    looks = " ".join(f"'{_hash(s)}'" for s in (style, *styles))
    code = "\n".join(
        f"<script>{s}</script>"
        if isinstance(s, str)
        else f'<script src="{s.url}" integrity="{s.integrity}" crossorigin="anonymous"></script>'
        for s in scripts
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; base-uri 'none'; \
form-action 'none'; script-src {inline}; style-src {looks}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(clean(title))}</title>
<style>{style}</style>
</head>
<body>
{body}
<script type="application/json" id="data">{_json(data)}</script>
{code}
</body>
</html>
"""


def asset(name: str) -> str:
    """A script or style of this package."""
    return (files("copilot_insights") / "assets" / name).read_text(encoding="utf-8")


def inert(value: str) -> str:
    """What a log says, as text of a page."""
    return escape(clean(value))


def _json(data: Any) -> str:  # noqa: ANN401 (whatever JSON can say)
    said = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return said.replace("<", "\\u003c")  # no text of a log can end the element


def _hash(said: str) -> str:
    return f"sha256-{b64encode(sha256(said.encode()).digest()).decode()}"
