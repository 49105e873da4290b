"""The Grafana dashboards as values: one list of panels, with the metric names of a profile.
The JSON files beside this are `text(profile)`; a test holds them equal.

Counters made from logs never start over, so that what a range holds is the total at its end
less the total before it. `increase()` would lose the first point of every series, and a session
exported afterwards often has no second one.
"""

import json
from typing import Any, Final

_CHOSEN: Final = 'vcs_repository_name=~"$repository"'
_CHAT: Final = {
    "latest": ("gen_ai_client_inference_duration_seconds", ""),
    "v1.41": ("gen_ai_client_operation_duration_seconds", 'gen_ai_operation_name="chat"'),
}
_TOKENS: Final = {
    "latest": [
        (f"gen_ai_client_inference_usage_{kind}_total", "", label)
        for kind, label in (
            ("input_tokens", "input"),
            ("output_tokens", "output"),
            ("cache_read_input_tokens", "cache read"),
        )
    ],
    "v1.41": [
        ("gen_ai_client_token_usage_sum", f'gen_ai_token_type="{kind}"', kind)
        for kind in ("input", "output")
    ],
}
_MODEL: Final = "gen_ai_request_model"
_TOOL: Final = "gen_ai_tool_name"
_DURATION: Final = "gen_ai_execute_tool_duration_seconds"
_TOOL_CALLS: Final = "github_copilot_tool_call_count_total"
Query = tuple[str, str]
"""PromQL, and the legend."""


def within(metric: str, by: str = "", where: str = "", window: str = "$__range") -> str:
    """PromQL: what a window of time, by default the dashboard's range, added to a cumulative
    series. The total before it may be old: nobody may have worked for months.
    """
    series = f"{metric}{{{', '.join(filter(None, (_CHOSEN, where)))}}}"
    now = f"last_over_time({series}[{window}])"
    before = f"last_over_time({series}[730d] offset {window})"
    return f"sum{f' by ({by})' if by else ''} ({now} - ({before} or {now} * 0))"


def _percentiles(metric: str, by: str, where: str = "") -> list[Query]:
    buckets = within(f"{metric}_bucket", f"le, {by}", where)
    return [
        (f"histogram_quantile({p / 100}, {buckets})", f"{{{{{by}}}}} p{p}") for p in (50, 90, 99)
    ]


_OPEN: Final = 'status=~"open|interrupted"'
_WAIT: Final = "copilot_insights_permission_wait_seconds"
_OUTCOMES: Final = "copilot_insights_tool_outcome_count_total"
_CALLS: Final = "copilot_insights_inference_call_count_total"
_REPOSITORY: Final = "vcs_repository_name"


def _panels(profile: str) -> list[tuple[str, str, str, list[Query]]]:
    """Title, kind, unit and queries of each."""
    chat, of = _CHAT[profile]
    tokens = _TOKENS[profile]
    failed = 'success="false"'
    return [
        ("Model calls", "stat", "short", [(within(f"{chat}_count", "", of), "calls")]),
        ("Tokens", "stat", "short", [(within(m, "", w), label) for m, w, label in tokens]),
        (
            "Credits",
            "stat",
            "short",
            [
                (within("copilot_insights_usage_ai_credits_total"), "AI credits"),
                (within("copilot_insights_usage_premium_requests_total"), "premium requests"),
            ],
        ),
        (
            "Failed model calls",
            "stat",
            "short",
            [(within(_CALLS, "", 'status="error"'), "failed")],
        ),
        ("Tool calls", "stat", "short", [(within(_TOOL_CALLS), "calls")]),
        ("Failed tool calls", "stat", "short", [(within(_TOOL_CALLS, "", failed), "failed")]),
        (
            "Cut off",
            "stat",
            "short",
            [
                (within(_CALLS, "", 'status="open"'), "model calls"),
                (within(_OUTCOMES, "", _OPEN), "tool calls"),
                (within("copilot_insights_log_rejected_lines_total"), "lines rejected"),
            ],
        ),
        (
            "Model calls per day",
            "timeseries",
            "short",
            [(within(f"{chat}_count", _MODEL, of, "1d"), f"{{{{{_MODEL}}}}}")],
        ),
        (
            "Tokens per day",
            "timeseries",
            "short",
            [(within(m, "", w, "1d"), label) for m, w, label in tokens],
        ),
        (
            "Model calls by model",
            "bargauge",
            "short",
            [(within(f"{chat}_count", _MODEL, of), f"{{{{{_MODEL}}}}}")],
        ),
        (
            "Tokens by model",
            "bargauge",
            "short",
            [(within(m, _MODEL, w), f"{{{{{_MODEL}}}}} {label}") for m, w, label in tokens],
        ),
        ("Model latency", "bargauge", "s", _percentiles(chat, _MODEL, of)),
        ("Tool latency", "bargauge", "s", _percentiles(_DURATION, _TOOL)),
        (
            "Failures by tool",
            "bargauge",
            "short",
            [(within(_TOOL_CALLS, _TOOL, failed), f"{{{{{_TOOL}}}}}")],
        ),
        (
            "Where the time went",
            "piechart",
            "s",
            [
                (
                    within("copilot_insights_interaction_time_seconds_total", "part"),
                    "{{part}}",
                )
            ],
        ),
        (
            "Model calls by repository",
            "bargauge",
            "short",
            [(within(f"{chat}_count", _REPOSITORY, of), f"{{{{{_REPOSITORY}}}}}")],
        ),
        (
            "Tokens by repository",
            "bargauge",
            "short",
            [(within(m, _REPOSITORY, w), f"{{{{{_REPOSITORY}}}}} {t}") for m, w, t in tokens],
        ),
        ("Permission waits", "bargauge", "s", _percentiles(_WAIT, "kind")),
    ]


_BARS: Final = {"custom": {"drawStyle": "bars", "fillOpacity": 80, "stacking": {"mode": "normal"}}}


def dashboard(profile: str) -> dict[str, Any]:
    """The dashboard in Grafana's model, for a profile of `otel.metrics`."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels: list[dict[str, Any]] = []
    x = y = 0
    for number, (title, kind, unit, queries) in enumerate(_panels(profile), 1):
        width, height = (4, 4) if kind == "stat" else (12, 8)
        daily = kind == "timeseries"
        if x + width > 24 or (panels and panels[-1]["type"] == "stat" and kind != "stat"):
            x, y = 0, y + panels[-1]["gridPos"]["h"]
        panels.append(
            {
                "id": number,
                "title": title,
                "type": kind,
                "datasource": source,
                "gridPos": {"x": x, "y": y, "w": width, "h": height},
                "fieldConfig": {
                    "defaults": {"unit": unit, "min": 0, **(_BARS if daily else {})},
                    "overrides": [],
                },
                "options": {} if daily else {"reduceOptions": {"calcs": ["lastNotNull"]}},
                **({"interval": "1d"} if daily else {}),
                "targets": [
                    {
                        "refId": chr(ord("A") + i),
                        "datasource": source,
                        "expr": query,
                        "legendFormat": legend,
                        "instant": not daily,
                        "range": daily,
                    }
                    for i, (query, legend) in enumerate(queries)
                ],
            }
        )
        x += width
    chat, _ = _CHAT[profile]
    return {
        "uid": f"copilot-insights-{profile.replace('.', '-')}",
        "title": f"Copilot CLI ({profile})",
        "tags": ["copilot", "gen_ai"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "time": {"from": "now-30d", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "repository",
                    "type": "query",
                    "datasource": source,
                    "query": f"label_values({chat}_count, vcs_repository_name)",
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "refresh": 2,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }


def text(profile: str) -> str:
    """The dashboard's file."""
    return json.dumps(dashboard(profile), indent=2) + "\n"
