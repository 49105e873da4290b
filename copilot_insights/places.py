"""Places that a user names or has. That a file system will not tell of one is said in a line."""

from pathlib import Path

from copilot_insights.errors import InsightsError


def home() -> Path:
    """The user's home directory.

    Raises:
        InsightsError: nothing says where that is.
    """
    return expanded("~")


def expanded(text: str) -> Path:
    """The path, with `~` or `~name` in front as the home directory that it means.

    Raises:
        InsightsError: nobody knows of such a home.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InsightsError(f"no home directory for {text}", "Set HOME, or name a path.") from None


def exists(path: Path) -> bool:
    """Whether something is there, be it a link to nothing.

    Raises:
        InsightsError: that can't be told.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: no name of a file
        return False
    except OSError as error:
        raise InsightsError(f"cannot look for {path}: {error.strerror}") from None
    return True
