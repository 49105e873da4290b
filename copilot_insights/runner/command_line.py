"""What a shell command line may run, read for deny rules: rather too much than too little.

No shell is imitated. Quotes are ignored, so that what stands in them counts as commands too;
what only the shell would know (a variable, a substitution) is `*`, any text; and a word after
a command that may run others is a command as well. What a line hides in a script or in another
program's data is not seen.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

QUIET = frozenset(
    {"[", "[[", "cat", "cd", "echo", "false", "grep", "head", "ls", "mkdir", "printf", "pwd",
     "tail", "test", "touch", "true", "wc"}
)  # fmt: skip
"""They run nothing else, whatever their arguments."""

SHELLS = frozenset({".", "ash", "bash", "dash", "fish", "ksh", "sh", "source", "zsh"})
"""Without a script in their arguments they run what they read."""

RUNNERS = SHELLS | {
    "builtin", "command", "coproc", "doas", "env", "eval", "exec", "nice", "nohup", "setsid",
    "stdbuf", "sudo", "time", "timeout", "xargs",
}  # fmt: skip
"""Each of their arguments may be the command that they run."""

BEGINNINGS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
"""After them a command begins, as in `find`."""

KEYWORDS = frozenset({"!", "do", "elif", "else", "if", "then", "until", "while"})
ASSIGNMENT = re.compile(r"\w+(\[[^\]]*\])?\+?=")
LONGEST_NAME = 255
WILD = re.compile(r"[*?\[]")

SIMPLER = (
    (re.compile(r"\\\n"), ""),  # a line that goes on
    (re.compile(r"\{\}"), "*"),  # of find and xargs
    (re.compile(r"\$'(?:\\.|[^'\\])*'", re.DOTALL), "*"),  # letters as numbers
    (re.compile(r"`([^`]*)`"), r"*\n\1\n"),
    (re.compile(r"\$\{\w+\}|\$\w+|\$[@#?$!*-]"), "*"),
    (re.compile(r"\$[({]"), "*\n"),
    (re.compile(r"\{(?=[^\s}])"), "*\n"),  # {a,b}
    (re.compile(r"[\\'\"]"), ""),
    (re.compile(r"<<<"), "\n"),  # what a command reads may be what it runs
    (re.compile(r"(?<!\d)\d*(?:&>>?|>>|>\||>&|<>|<<-?|<&|>|<)\s*[^\s;&|()<>]*"), " "),
    (re.compile(r","), " "),  # the rest of {a,b}
)
"""In turn: what makes a line harder to read → what stands for it."""

SEPARATORS = re.compile(r"[;&|\n(){}`]+")


def runs(line: str, command: Sequence[str]) -> bool:
    """Whether a command line may run a command: its name, then perhaps its first words.

    `("git", "push")` is found in `cd x && sudo /usr/bin/git -C y push`, and in `$GIT push`.
    """
    return any(_begins(words, at, command) for words, at in _beginnings(line))


def _beginnings(line: str) -> Iterator[tuple[list[str], int]]:
    """Where commands may begin: the words of a piece of the line, and the place in them."""
    for pattern, simple in SIMPLER:
        line = pattern.sub(simple, line)
    for piece in SEPARATORS.split(line):
        words = piece.split()
        scripts = (at for at, word in enumerate(words) if not word.startswith(("-", "/dev/")))
        last_script = max(scripts, default=-1)
        first = sure = True
        for at, word in enumerate(words):
            if sure and (word in KEYWORDS or ASSIGNMENT.match(word)):
                continue
            if sure or not WILD.search(word):
                yield words, at
            name = word.rpartition("/")[2]
            if first and name in QUIET:
                break
            if name in SHELLS and at >= last_script:
                yield ["*"], 0
            sure = name in RUNNERS or name in BEGINNINGS or (sure and not first)
            first = name in BEGINNINGS


def _begins(words: Sequence[str], at: int, command: Sequence[str]) -> bool:
    """Whether a command begins there, options and their arguments left out."""
    name = words[at].rpartition("/")[2]
    if not _may_be(name, command[0]):
        return False
    if WILD.search(name):
        return True  # it may be all of the command
    wanted = list(command[1:])
    after_option = False
    for word in words[at + 1 :] if wanted else ():
        if _may_be(word, wanted[0]):
            wanted.pop(0)
            if not wanted or WILD.search(word):
                return True
        elif word.startswith("-") or after_option or wanted[0].startswith("-"):
            after_option = word.startswith("-")
        else:
            return False
    return not wanted


def _may_be(word: str, wanted: str) -> bool:
    """Whether the shell may make a word of this one; a long pattern is not looked into."""
    if not WILD.search(word):
        return word == wanted
    return len(word) > LONGEST_NAME or fnmatch.fnmatchcase(wanted, word)
