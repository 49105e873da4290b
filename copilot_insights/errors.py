"""The one error that users see.

Raised anywhere, caught once, in `cli.main`: one line that says what went wrong, where,
and what to do. No traceback reaches a user.
"""

import os


class InsightsError(Exception):
    """Something that the tool cannot do for the user.

    Args:
        message: what is wrong, and where.
        hint: what to do about it, a sentence of its own.
        exit_code: 1 cannot do it, 2 wrong usage, 3 a check found problems.
    """

    def __init__(self, message: str, hint: str = "", *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


def cannot_listen(where: str, error: OSError) -> InsightsError:
    """What is said of a port that can't be listened on; `where` is host:port."""
    why = os.strerror(error.errno) if error.errno else str(error)
    return InsightsError(f"cannot listen on {where}: {why}", "Choose another port.")
