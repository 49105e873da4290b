"""From the configuration of `session.create` and `session.resume` to a session's settings.

The configuration is the SDK's: flat, camelCase, only the keys that were set. What a loop of
this size has no use for (MCP servers, skills, canvases, …) is taken and left alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from copilot_insights.errors import InsightsError
from copilot_insights.runner.agent import Limits
from copilot_insights.runner.hooks import HOOK_TYPES, Hook, Hooks
from copilot_insights.runner.interactions import INSTRUCTIONS
from copilot_insights.runner.model import OpenAIModel, Provider, model_from_environment
from copilot_insights.runner.permissions import Policy, Rule
from copilot_insights.runner.scripts import ScriptedModel, Scripts
from copilot_insights.runner.session import Settings
from copilot_insights.runner.toolbox import builtin_tools
from copilot_insights.runner.tools import Tool, ToolContext, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from copilot_insights.runner.model import Model

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a server was started with."""

    home: Path
    scripts: Scripts | None = None
    allow_all: bool = False
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    limits: Limits = field(default_factory=Limits)


def settings_from(
    config: Mapping[str, Any], defaults: Defaults, invoke_hook: Callable[[str], Hook]
) -> Settings:
    """The settings of a session.

    Args:
        config: the parameters of `session.create` or `session.resume`.
        defaults: the server's own.
        invoke_hook: makes a hook of a type that asks the client.

    Raises:
        InsightsError: a value that makes no sense, or no model to run with.
    """
    cwd = Path(_text(config, "workingDirectory") or ".")
    if not cwd.is_dir():
        raise InsightsError(f"workingDirectory is no directory: {cwd}")
    hooks = Hooks()
    if config.get("hooks"):
        for kind in HOOK_TYPES:
            hooks.add(kind, invoke_hook(kind))
    asks = bool(config.get("requestPermission")) and not defaults.allow_all
    tools = client_tools(config)
    message = config.get("systemMessage") or {}
    return Settings(
        home=defaults.home,
        cwd=cwd,
        model=model_from(config, defaults),
        limits=limits_from(config, defaults.limits),
        policy=Policy(
            allow_all=defaults.allow_all,
            allow_paths=defaults.allow_all,
            allow=list(defaults.allow),
            deny=list(defaults.deny),
            ask_reads=asks,
        ),
        hooks=hooks,
        tools=tools,
        hidden_tools=hidden_tools(config, tools),
        instructions=instructions_from(message if isinstance(message, dict) else {}),
        streaming=bool(config.get("streaming")),
        client_name=_text(config, "clientName") or "sdk",
        name=_text(config, "name"),
    )


def model_from(config: Mapping[str, Any], defaults: Defaults) -> Model:
    """The client's provider, else the server's script, else the CLI's own variables."""
    name = _text(config, "model")
    provider = config.get("provider")
    if isinstance(provider, dict):
        if provider.get("type", "openai") != "openai" or provider.get("azure"):
            raise InsightsError("Only providers of type openai are spoken")
        if provider.get("wireApi", "completions") != "completions":
            raise InsightsError("Only the wireApi completions is spoken")
        base_url = _text(provider, "baseUrl")
        name = name or _text(provider, "modelId")
        if not base_url or not name:
            raise InsightsError("A provider needs a baseUrl and a model")
        headers = provider.get("headers")
        return OpenAIModel(
            name,
            Provider(
                base_url,
                _text(provider, "apiKey") or "",
                _text(provider, "bearerToken") or "",
                headers if isinstance(headers, dict) else {},
            ),
            _text(provider, "wireModel"),
        )
    if defaults.scripts is not None:
        return ScriptedModel(defaults.scripts, name or "scripted")
    model = model_from_environment(name)
    if model is None:
        raise InsightsError(
            "There is no model to run with",
            hint="Pass a provider, start the server with --script, or set "
            "COPILOT_PROVIDER_BASE_URL.",
        )
    return model


def limits_from(config: Mapping[str, Any], limits: Limits) -> Limits:
    """The limits, with the client's `autopilot` options."""
    autopilot = config.get("autopilot")
    if not isinstance(autopilot, dict):
        return limits
    continues = autopilot.get("maxContinues", limits.continues)
    if not isinstance(continues, int) or continues < 0:
        raise InsightsError("autopilot.maxContinues is a number, 0 or more")
    if autopilot.get("continuationEnabled") is False:
        continues = 0
    return replace(limits, continues=continues)


def client_tools(config: Mapping[str, Any]) -> list[Tool]:
    """The tools that the client runs itself."""
    return [client_tool(entry) for entry in config.get("tools") or ()]


def client_tool(entry: object) -> Tool:
    """A tool of a client, from `{name, description, parameters, overridesBuiltInTool?, …}`."""
    if not isinstance(entry, dict) or not TOOL_NAME.fullmatch(str(entry.get("name"))):
        raise InsightsError("A tool needs a name of letters, digits, _ and -")
    name = entry["name"]
    if name in builtin_tools() and not entry.get("overridesBuiltInTool"):
        raise InsightsError(f"The tool {name} is built in", hint="Say overridesBuiltInTool.")

    async def run(context: ToolContext, _: Mapping[str, Any]) -> ToolResult:
        return ToolResult(f"{context.call.name} is run by the client", "failure")

    return Tool(
        name,
        str(entry.get("description") or ""),
        entry.get("parameters") or {"type": "object", "properties": {}},
        run,
        "none" if entry.get("skipPermission") else "custom-tool",
        external=True,
    )


def hidden_tools(config: Mapping[str, Any], tools: list[Tool]) -> frozenset[str]:
    """The tools that `availableTools` and `excludedTools` take away."""
    names = {*builtin_tools(), *(tool.name for tool in tools)}
    hidden = {name for name in config.get("excludedTools") or () if isinstance(name, str)}
    available = config.get("availableTools")
    if isinstance(available, list):
        hidden |= names - set(available)
    return frozenset(hidden)


def instructions_from(message: Mapping[str, Any]) -> str:
    """The system prompt: ours, the client's after it, or the client's alone."""
    content = _text(message, "content")
    if not content:
        return INSTRUCTIONS
    if message.get("mode") == "replace":
        return content
    return f"{INSTRUCTIONS}\n\n{content}"


def _text(config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise InsightsError(f"{key} is a text")
    return value
