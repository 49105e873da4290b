"""Running commands: bounded in time, memory and processes left behind.

A command gets its own process group, which is killed when the command ends, runs out of
time or is cancelled: nothing outlives its call. Output is read as it comes and only so much
of it is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from copilot_insights.runner.tools import ToolContext, ToolFailed, ToolResult

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KEPT_BYTES = 4 * 1024 * 1024
"""Of each command's output; what comes after is counted and dropped."""

REAP_SECONDS = 5.0
DRAIN_SECONDS = 0.5
"""How long to wait for output that is still in the pipe when a command has ended."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended by itself. `size` is all that it printed, in bytes."""

    exit_code: int
    output: bytes
    size: int


class _Collector(asyncio.SubprocessProtocol):
    """Keeps the first KEPT_BYTES of a command's output, on two futures: exit and end of file."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.kept = bytearray()
        self.size = 0
        self.exited: asyncio.Future[None] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002
        self.size += len(data)
        self.kept += data[: max(0, KEPT_BYTES - len(self.kept))]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        if not self.drained.done():
            self.drained.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)


async def run_command(
    arguments: Sequence[str],
    cwd: Path,
    timeout: float,  # noqa: ASYNC109  # the command is killed, not only waited for
    stdin: bytes = b"",
    *,
    errors: bool = True,
) -> Finished:
    """Run a command to its end.

    Args:
        arguments: program and arguments; no shell.
        cwd: where it runs.
        timeout: in seconds; past it the command and its children are killed.
        stdin: what it is given to read.
        errors: whether stderr is kept, among stdout, or dropped.

    Raises:
        TimeoutError: it did not end in time. `args[0]` is what it had printed, as bytes.
    """
    loop = asyncio.get_running_loop()
    transport, collector = await loop.subprocess_exec(
        _Collector,
        *arguments,
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT if errors else asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        if stdin:
            pipe = transport.get_pipe_transport(0)
            pipe.write(stdin)  # type: ignore[union-attr]
            pipe.write_eof()  # type: ignore[union-attr]
        done, _ = await asyncio.wait({collector.exited}, timeout=timeout)
        if not done:
            raise TimeoutError(bytes(collector.kept))
        # A child left behind may hold the pipe open; its output is not waited for.
        await asyncio.wait({collector.drained}, timeout=DRAIN_SECONDS)
        code = transport.get_returncode()
        return Finished(code if code is not None else -1, bytes(collector.kept), collector.size)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(transport.get_pid(), signal.SIGKILL)
        await asyncio.wait({collector.exited}, timeout=REAP_SECONDS)
        transport.close()


def clip(text: str, size: int, context: ToolContext) -> str:
    """A tool's output as the model gets it: whole if small, else a note where the rest lies.

    Args:
        text: what was kept of the output.
        size: bytes of the whole output.
        context: says how much is too much, and where to put it.
    """
    if size <= context.large_output:
        return text
    context.spill.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = context.spill / f"{uuid.uuid4()}.txt"  # a call's id is the model's text, and no name
    file.write_text(text, encoding="utf-8", errors="replace")
    cut = "" if size <= KEPT_BYTES else f" Only the first {KEPT_BYTES} bytes were kept."
    return (
        f"Output too large to read at once ({size / 1024:.1f} KB). Saved to: {file}\n"
        f"Search it or read it in ranges.{cut} It begins:\n\n{text[:500]}"
    )


async def bash(
    context: ToolContext,
    *,
    command: Annotated[str, Meta(description="The command line, for bash")],
    description: Annotated[str, Meta(description="What it is for, in a few words")] = "",  # noqa: ARG001  # for the log
    mode: Annotated[
        Literal["sync", "async"], Meta(description="Only sync: the call ends with the command")
    ] = "sync",
    initial_wait: Annotated[  # noqa: ARG001
        float, Meta(description="Accepted for the CLI's sake; the call waits to the end anyway")
    ] = 30,
) -> ToolResult:
    """Run a command in bash, in the working directory, and return its output and exit code."""
    if mode != "sync":
        raise ToolFailed("Only mode sync is there: a command ends with its call.")
    arguments = ("bash", "-c", command)
    try:
        done = await run_command(arguments, context.cwd, context.bash_timeout)
    except TimeoutError as error:
        printed = error.args[0].decode(errors="replace")
        raise ToolFailed(
            f"Killed after {context.bash_timeout:g} s. Output so far:\n{printed[:2000]}",
            "timeout",
        ) from error
    text = clip(done.output.decode(errors="replace"), done.size, context)
    text = text.removesuffix("\n")
    note = f"<shellId: {context.call.id} completed with exit code {done.exit_code}>"
    return ToolResult(f"{text}\n{note}", log={"shellExecution": {"exitCode": done.exit_code}})
