"""Deny rules: what the shell would run is found however it is written; the rest passes."""

import shlex
import subprocess

import pytest

from copilot_insights.runner.permissions import Call, Rule
from copilot_insights.runner.toolbox import builtin_tools

BASH = builtin_tools()["bash"]

RUN_RM = r"""
rm x
>y rm x
2>/dev/null rm x
2>&1 rm x
>&2 rm x
&>y rm x
>"a b" rm x
{fd}>y rm x
sudo -u root rm x
env -i A=b rm x
timeout 5 rm x
echo x | xargs -n1 rm
echo rm x | xargs -I{} bash -c {}
nice -n 5 rm x
nohup rm x
command rm x
exec -a y rm x
time -p rm x
coproc rm x
setsid rm x
strace rm x
busybox rm x
bash -c 'rm x'
sh -c "cd .; rm x"
eval "r""m x"
find . -name x -exec rm {} ;
find . -execdir sudo rm {} +
echo $(rm x)
echo `rm x`
y=$(rm x)
echo ${y:-$(rm x)}
cat <(rm x)
(rm x)
{ rm x; }
! rm x
true & rm x
true	&&rm x
A=1 B=2 rm x
if true; then rm x; fi
while rm x; do :; done
case a in a) rm x;; esac
[[ -f x ]] && rm x
f() { rm x; }; f
trap 'rm x' EXIT
\rm x
r\m x
r'm' x
"r"m x
/bin/rm x
/bin/r? x
$'\x72m' x
r=rm; $r x
${r} x
${r:-rm} x
$(echo rm) x
r$(printf m) x
`echo rm` x
r{m,} x
{rm,x}
{rm,"x"}
echo 'rm x' | bash
echo 'rm x' | sudo sh -s
echo 'rm x' | bash /dev/stdin
/dev/sh rm x
bash <<< "rm x"
. <(echo rm x)
python3 -c "import os; os.system('rm x')"
cp /bin/rm y; ./y x
""".strip().split("\n")

OVER_LINES = ["rm\\\n x", "true\nrm x", "cat <<E\n$(rm x)\nE", "bash <<E\nrm x\nE", "r\\\nm x"]

RUN_NO_RM = r"""
ls -la
echo $HOME rm
cat a | grep rm
pytest tests/*.py -k rm_x
git log --format=%h $X
find . -name '*.py'
find . -exec grep y {} +
for f in *.py; do wc $f; done
$HOME/bin/foo x
python3 -m pytest "$@"
echo "$(date)"; y=$(date)
[[ $x == *.py ]] && echo y
make build 2>&1 | tail -5
FOO=1 sudo apt-get install foo
diff <(cat a) <(cat b) >> c
gcc -o rm_tool rm.c
ls | xargs wc
""".strip().split("\n")


def denies(rule, command):
    return Rule.parse(rule).denies(BASH, Call(command, ()))


@pytest.mark.parametrize("command", [*RUN_RM, *OVER_LINES])
@pytest.mark.parametrize("rule", ["shell(rm)", "shell(rm:*)"])
def test_a_deny_rule_finds_its_command(command, rule):
    assert denies(rule, command)


@pytest.mark.parametrize("command", RUN_NO_RM)
def test_a_deny_rule_is_about_its_command_only(command):
    assert not denies("shell(rm)", command)


def test_the_shell_does_run_what_is_denied(tmp_path):
    """The list above is no theory: with a harmless `rm`, most of it runs it."""
    (tmp_path / "rm").write_text("#!/bin/sh\necho ran >> ran\n", encoding="utf-8")
    (tmp_path / "rm").chmod(0o755)
    ran = 0
    for command in [*RUN_RM, *OVER_LINES]:
        (tmp_path / "x").touch()
        (tmp_path / "ran").unlink(missing_ok=True)
        line = command.replace("/bin/", "./").replace("sudo -u root", "env").replace("sudo", "env")
        subprocess.run(
            ["timeout", "5", "bash", "-c", f"PATH={shlex.quote(str(tmp_path))}:$PATH\n{line}"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        ran += (tmp_path / "ran").exists()
    assert ran > 50


@pytest.mark.parametrize(
    ("command", "denied"),
    [
        ("git push", True),
        ("cd a && git -C b push origin", True),
        ("git --no-pager push", True),
        ("git -c a=b push", True),
        ("$GIT push", True),
        ("g='git push'; $g", True),
        ("git $X", True),
        ("git status", False),
        ("git commit -m push", False),
        ("git add push", False),
    ],
)
def test_a_deny_rule_of_two_words_looks_past_options(command, denied):
    assert denies("shell(git push)", command) is denied


@pytest.mark.parametrize(
    ("text", "denied"),
    [("a ", False), ("sudo ", False), ("sh ", True), ("{", True), ("$(", True), ("`", True),
     ("'", False), ("\\", False), (">", False), ("${a", True), ("9", False), ("-x ", False),
     ("x[", True), ("$'", True), ("a,", False), ("\n", False)],
)  # fmt: skip
def test_a_long_line_takes_no_time_to_speak_of(text, denied):
    """Were the work to grow with the square of the line, each of these would take minutes."""
    assert denies("shell(git push)", f"echo; {text * 300_000}") is denied
