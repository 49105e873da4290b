"""The commands `run`, `serve` and `model`. Everything heavy is imported inside them."""

# ruff: noqa: FBT002, PLC0415, PLR0913, PLR0917  # typer takes options so; imports are lazy

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from copilot_insights.errors import InsightsError

if TYPE_CHECKING:
    import asyncio

    from copilot_insights.runner.model import Model
    from copilot_insights.runner.session import Settings


class Output(StrEnum):
    """What `run` prints."""

    text = "text"
    json = "json"


def default_home() -> Path:
    """Where sessions go if nothing is said: never the CLI's own directory."""
    return Path.home() / ".copilot-insights"


def register(app: typer.Typer) -> None:
    """Add the runner's commands to an application."""
    app.command("run", short_help="The agent loop on a prompt; leaves a session log.")(run)
    app.command(
        "serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
    )(serve)
    app.command("model", short_help="Serve scripts as an OpenAI-compatible model.")(model)


ScriptOption = Annotated[
    str | None, typer.Option("--script", help="Replies from a script file; `demo` is built in.")
]
HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Where session-state/ is. Default: ~/.copilot-insights"),
]
AllowAllOption = Annotated[
    bool, typer.Option("--allow-all", help="Ask for nothing, also outside the directory.")
]
AllowToolOption = Annotated[
    list[str] | None,
    typer.Option("--allow-tool", help="shell, shell(git:*), write, view, …; may be repeated."),
]
DenyToolOption = Annotated[
    list[str] | None, typer.Option("--deny-tool", help="Wins over every --allow-….")
]
HooksOption = Annotated[
    list[Path] | None,
    typer.Option("--hooks", help="A hook file of the CLI's format, or a directory of them."),
]


def run(
    prompt: Annotated[str, typer.Argument(help="What to do.")],
    script: ScriptOption = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model id. Default: $COPILOT_MODEL")
    ] = None,
    cwd: Annotated[Path, typer.Option("--cwd", help="Where to work.")] = Path(),
    home: HomeOption = None,
    autopilot: Annotated[
        bool, typer.Option("--autopilot", help="Nudge until the model says task_complete.")
    ] = False,
    max_autopilot_continues: Annotated[
        int, typer.Option("--max-autopilot-continues", min=0, help="How often to nudge.")
    ] = 5,
    allow_all: AllowAllOption = False,
    allow_all_tools: Annotated[
        bool, typer.Option("--allow-all-tools", help="Ask for no tool, inside the directory.")
    ] = False,
    allow_tool: AllowToolOption = None,
    deny_tool: DenyToolOption = None,
    hooks: HooksOption = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="ID", help="Go on with a session.")
    ] = None,
    continue_: Annotated[
        bool, typer.Option("--continue", help="Go on with the newest session.")
    ] = False,
    output: Annotated[Output, typer.Option("--output", help="text, or every event as JSON.")] = (
        Output.text
    ),
) -> None:
    """Run the agent loop on a prompt, and leave a session log like the CLI's.

    A model comes from --script, or from the CLI's own variables: COPILOT_PROVIDER_BASE_URL,
    COPILOT_PROVIDER_API_KEY, COPILOT_MODEL.
    """
    from copilot_insights.runner.agent import Limits
    from copilot_insights.runner.hooks import Hooks, load_hook_files
    from copilot_insights.runner.permissions import Policy, Rule
    from copilot_insights.runner.session import Settings

    if not cwd.is_dir():
        raise InsightsError(f"There is no directory {cwd}", exit_code=2)
    policy = Policy(
        allow_all=allow_all or allow_all_tools,
        allow_paths=allow_all,
        allow=[Rule.parse(text) for text in allow_tool or ()],
        deny=[Rule.parse(text) for text in deny_tool or ()],
    )
    own_hooks = Hooks()
    load_hook_files(hook_files(hooks or []), own_hooks)
    settings = Settings(
        home=home or default_home(),
        cwd=cwd,
        model=choose_model(script, model),
        mode="autopilot" if autopilot else "interactive",
        limits=Limits(continues=max_autopilot_continues),
        policy=policy,
        hooks=own_hooks,
        streaming=output is Output.json,
    )
    session_id = resume or (newest_session(settings.home) if continue_ else None)
    import asyncio

    ok = asyncio.run(run_prompt(settings, prompt, session_id, output))
    raise typer.Exit(0 if ok else 1)


def choose_model(script: str | None, name: str | None) -> Model:
    """The model that was asked for.

    Raises:
        InsightsError: none was, with how to get one.
    """
    from copilot_insights.runner.model import model_from_environment
    from copilot_insights.runner.scripts import ScriptedModel, load_scripts

    if script is not None:
        return ScriptedModel(load_scripts(script), name or "scripted")
    found = model_from_environment(name)
    if found is None:
        raise InsightsError(
            "There is no model to run with",
            hint="Try --script demo, or set COPILOT_PROVIDER_BASE_URL and COPILOT_MODEL to an "
            "OpenAI-compatible endpoint and one of its models.",
        )
    return found


def hook_files(paths: list[Path]) -> list[Path]:
    """Files as they are, directories as the JSON files in them."""
    files = []
    for path in paths:
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return files


def newest_session(home: Path) -> str:
    """The id of the session that was written last.

    Raises:
        InsightsError: there is none.
    """
    logs = list((home / "session-state").glob("*/events.jsonl"))
    if not logs:
        raise InsightsError(f"There is no session in {home}", hint="Run one without --continue.")
    return max(logs, key=lambda log: log.stat().st_mtime).parent.name


async def run_prompt(
    settings: Settings, prompt: str, session_id: str | None, output: Output
) -> bool:
    """Run one prompt to its end, showing it; whether it ended well."""
    import asyncio
    import signal

    from copilot_insights.runner.session import Session
    from copilot_insights.runner.view import JsonLines, LiveView

    session = Session.resume(settings, session_id) if session_id else Session.create(settings)
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    session.on(JsonLines() if output is Output.json else LiveView(colour=colour))
    stops: list[asyncio.Task[None]] = []
    try:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(
            signal.SIGINT, lambda: stops.append(loop.create_task(session.abort()))
        )
    except NotImplementedError:  # Windows: Ctrl-C ends the process, the log stays whole
        pass
    ok = True
    try:
        await session.send_and_wait(prompt)
    except InsightsError:
        ok = False  # the view has shown why
    await session.shutdown()
    where = session.log.path
    if session.log.size:
        sys.stderr.write(f"\nLog: {where}\nReport: copilot-insights show {where}\n")
    return ok and not session.unwritten


def serve(
    context: typer.Context,
    stdio: Annotated[bool, typer.Option("--stdio", help="Speak on stdin and stdout.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="N", min=0, max=65_535, help="On 127.0.0.1; 0 takes a free one."
        ),
    ] = None,
    script: ScriptOption = None,
    home: HomeOption = None,
    allow_all: AllowAllOption = False,
    allow_tool: AllowToolOption = None,
    deny_tool: DenyToolOption = None,
    headless: Annotated[bool, typer.Option("--headless", hidden=True)] = False,
    no_auto_update: Annotated[bool, typer.Option("--no-auto-update", hidden=True)] = False,
    no_auto_login: Annotated[bool, typer.Option("--no-auto-login", hidden=True)] = False,
    log_level: Annotated[str, typer.Option("--log-level", hidden=True)] = "warning",
    auth_token_env: Annotated[str, typer.Option("--auth-token-env", hidden=True)] = "",
    session_idle_timeout: Annotated[int, typer.Option("--session-idle-timeout", hidden=True)] = 0,
) -> None:
    """Serve sessions over JSON-RPC, as the CLI does for its SDKs.

    Takes the arguments with which an SDK starts the CLI. Without --home, sessions go to
    $COPILOT_HOME if it is set (the SDK's base_directory), else to ~/.copilot-insights.
    """
    import asyncio

    from copilot_insights.runner.opening import Defaults
    from copilot_insights.runner.permissions import Rule
    from copilot_insights.runner.scripts import load_scripts
    from copilot_insights.runner.server import Server, serve_stdio, serve_tcp

    del headless, no_auto_update, no_auto_login, log_level, auth_token_env, session_idle_timeout
    if context.args:
        raise InsightsError(f"{context.args[0]!r} is no option of serve", exit_code=2)
    if stdio and port is not None:
        raise InsightsError("--stdio and --port exclude each other", exit_code=2)
    named = os.environ.get("COPILOT_HOME")
    defaults = Defaults(
        home=home or (Path(named) if named else default_home()),
        scripts=load_scripts(script) if script else None,
        allow_all=allow_all,
        allow=tuple(Rule.parse(text) for text in allow_tool or ()),
        deny=tuple(Rule.parse(text) for text in deny_tool or ()),
    )

    async def main() -> None:
        token = os.environ.get("COPILOT_CONNECTION_TOKEN", "")
        server = Server(defaults, token, one_client=stdio)
        await (serve_stdio(server) if stdio else serve_tcp(server, port or 0))

    asyncio.run(main())


def model(
    scripts: Annotated[str, typer.Argument(help="A script file, or `demo`.")],
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="N", min=0, max=65_535, help="On 127.0.0.1; 0 takes a free one."
        ),
    ] = 0,
    log: Annotated[
        Path | None, typer.Option("--log", help="Append one JSON line a call to this file.")
    ] = None,
) -> None:
    """Serve scripts as an OpenAI-compatible model, for any client, the real CLI too."""
    from copilot_insights.runner.model_server import serve_scripts
    from copilot_insights.runner.scripts import load_scripts

    serve_scripts(load_scripts(scripts), port, log)
