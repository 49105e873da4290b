"""Calling what others wrote: hooks, tools, models and those who are asked for a permission.

Whatever they raise is an `Exception` to us. `SystemExit` would end the loop's process, and a
`CancelledError` that nobody asked for its task without a word.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


async def call(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401  # theirs
    """Call a function, sync or async.

    Raises:
        Exception: whatever it raised; a RuntimeError for what is no `Exception`. A cancellation
            of the task that calls passes, and so does Ctrl-C.
    """
    try:
        value = function(*arguments)
        return await value if inspect.isawaitable(value) else value
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
