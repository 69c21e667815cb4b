"""Lines that bash makes more of than they show: none is allowed to a caller with narrow grants.

Each line runs ``pwn``, which is not granted, or another ``git`` than the one that is.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.kernel.ports import Effect, Right
from agentos.permissions.exec_request import ExecRequest
from agentos.permissions.rule import PermissionSet, Rule
from agentos.permissions.sets.examples import decide_by_set
from agentos.shell.reader import parse_text, parse_words
from tests.permissions.strategies import NAMES
from tests.shell.texts import PIECES
from tests.support.runs.rounds import rounds
from tests.support.runs.rows import each_row

COMMANDS = (
    "echo", "git", "a", "b", "printf", "read", "getopts", "declare", "export", "mapfile", "test", "find", "xargs",
    "env", "time", "exec", "bash", "eval", "watch", "sh", ":",
)  # fmt: skip
GRANTED = PermissionSet(
    "the test's",
    (
        *(Rule("allow", "commands", f"{name}{rest}", "here") for name in COMMANDS for rest in ("", " *")),
        Rule("allow", "write", "/workspace/**", "here"),
    ),
)
EVERYTHING = PermissionSet("the test's", (Rule("allow", "commands", "*", "here"),))


def decision(line: str | list[str]) -> Effect:
    """Of a caller that may run those and write to /workspace."""
    wanted = ExecRequest(parse_text(line) if isinstance(line, str) else parse_words(line), "/workspace", jailed=False)
    return decide_by_set(GRANTED, NAMES, Right("exec", wanted)).effect


@each_row(
    "line",
    [
        "echo hi >&2", "echo hi 2>&1", "echo hi 1>&2 2>&-", "echo hi >&-", "echo hi &>f", "echo hi &>'f$(pwn)'",
        "echo hi >'f$(pwn)' 2>&1",
    ],
)  # fmt: skip
def test_what_shows_all_that_it_runs_is_allowed(line: str) -> None:
    assert decision(line) == "allow"


@each_row(
    "line",
    [
        "echo hi >& 2", "echo hi <&0", "echo hi <&-", "time echo", "time -p git status", "FOO=1 time echo",
        "time env FOO=1 echo", "printf -v x '%s' y", "getopts ab: x", "read x", "case x in x) y=1;; *) echo;; esac",
        "find . -exec echo {} +", "xargs -n 1 echo", "xargs -0 -I {} echo {}", "env -i -u x FOO=1 echo",
    ],
)  # fmt: skip
def test_what_only_bash_can_read_needs_a_grant_of_everything(line: str) -> None:
    assert decision(line) == "deny"
    assert (
        decide_by_set(
            EVERYTHING, NAMES, Right("exec", ExecRequest(parse_text(line), "/workspace", jailed=False))
        ).effect
        == "allow"
    )


@each_row(
    "line",
    [
        "echo hi >&'/workspace/f$(pwn)'", 'echo hi >&"/workspace/f\\$(pwn)"', "echo hi >&/workspace/f\\$\\(pwn\\)",
        "echo hi >& '/workspace/f$(pwn)'", "echo hi 1>&'f$(pwn)'", "echo hi >&$'f$(pwn)'", "echo hi >&'f`pwn`'",
        "x='f$(pwn)'; echo hi >&\"$x\"", "x='f$(pwn)'; echo hi >&$x", "echo hi >&2'x$(pwn)'", "echo hi >&-'x$(pwn)'",
        "echo hi 2>&'f$(pwn)'", "echo hi <&'f$(pwn)'", "echo hi 0<&\"f\\$(pwn)\"", "echo hi {x}>&'f$(pwn)'",
        "{ echo; } >&'f$(pwn)'", "(echo) >&'f$(pwn)'", "for i in a; do echo; done >&'f$(pwn)'", ">&'f$(pwn)'",
        ">&'f$(pwn)' echo", "f() { echo; } >&'f$(pwn)'; f", "time >&'f$(pwn)'", "exec >&'f$(pwn)'",
        "echo \"$(echo >&'f$(pwn)')\"", "bash -c \"echo >&'f\\$(pwn)'\"", "eval \"echo >&'f\\$(pwn)'\"",
        "case x in x) echo >&'f$(pwn)';; esac", "echo <<E >&'f$(pwn)'\nE", ">&f\\$a #x=1 ",
    ],
)  # fmt: skip
def test_a_redirect_whose_word_is_expanded_twice_is_denied(line: str) -> None:
    assert decision(line) == "deny"


@each_row("name", ["OPTIND", "RANDOM", "SRANDOM", "SECONDS", "HISTCMD", "LINENO"])
@each_row(
    "line",
    [
        "{}='x[$(pwn)]'", "{}+='x[$(pwn)]'", "{}='x[$(pwn)]' echo", "declare {}='x[$(pwn)]'", "export {}='x[$(pwn)]'",
        "read {} <<< 'x[$(pwn)]'", "printf -v {} 'x[$(pwn)]'", "mapfile {} <<< 'x[$(pwn)]'", ": ${{{}:='x[$(pwn)]'}}",
        "for {} in 'x[$(pwn)]'; do echo; done", "case x in x) {}='x[$(pwn)]';; esac",
    ],
)  # fmt: skip
def test_no_integer_variable_of_bash_is_given_an_expression(line: str, name: str) -> None:
    assert decision(line.format(name)) == "deny"


@each_row(
    "line",
    [
        "case x in x) PATH=a;; esac; git status", "case x in x) PATH=a ;; esac; git", "case x in (x) PATH=a\nesac; git",
        "getopts -- a PATH -a; git status", "printf -v x -v PATH a; git", "time PATH=a git", "time >f PATH=a git",
    ],
)  # fmt: skip
def test_no_construct_hides_where_programs_are_searched_for(line: str) -> None:
    assert decision(line) == "deny"


@each_row(
    "line",
    [
        "env -u -S pwn", "env --unset -S pwn", "xargs --replace pwn", "xargs --eof pwn", "xargs --max-lines pwn",
        "xargs -rIX sh -c 'echo X'", "xargs -tI X sh -c 'echo X'", "xargs -IX -E -IY sh -c 'echo X'",
        "xargs -I X -n 1 sh -c", "xargs -d -IY sh -c", "find . -exec env + pwn ';'", "find . -exec sh -c + pwn ';'",
        "x=';'; find . -exec echo \"$x\" -exec pwn ';'", "x='{}'; find . -exec echo \"$x\" + -exec pwn ';'",
        "find . -exec echo '{}' + -exec pwn ';'", "watch -tx sh -c 'x=1 pwn'", "watch --exec sh -c 'x=1 pwn'",
        "watch echo -x ';pwn'", "watch echo --exec ';pwn'",
    ],
)  # fmt: skip
def test_no_option_of_a_wrapper_hides_what_it_runs(line: str) -> None:
    assert decision(line) == "deny"


@pytest.mark.parametrize(
    "line",
    [
        "time x=1 time b", "x=1 time", "x=1 time time x=1 time", "getopts x -a", "getopts -a", "printf -v -x y",
        "printf -- -v x", "xargs -n1 -I -I sh -c x", "xargs -I", "printf " + "-v x " * 2000,
        ["printf", *["-v", "x"] * 2000], ["env"] * 5000, ["time", *["x=1", "time"] * 2000], ["eval"] * 5000,
    ],
)  # fmt: skip
def test_a_line_that_the_reader_fails_at_is_denied_and_no_internal_error(line: str | list[str]) -> None:
    assert decision(line) in ("allow", "deny")


ODD = (
    "getopts ", "printf -v ", "x[", "y[$(b)]", "'x[$(b)]' ", "-v ", "-x ", "-a ", "--", ">&", "<&", "&>", "time x=1 ",
    "time ", "env -S ", "env -u ", "nohup ", "nice -n ", "timeout -k ", "xargs -I ", "xargs --replace ", "find -exec ",
    "{} ", "+ ", "\\; ", "read ", "mapfile -t ", "test -v ", "declare -i ", "unset ", "OPTIND=", "hash -p ", "trap ",
    "sh -c ", "bash -o ", "watch -x ", "flock f ", "sudo -u ", "su -c ", "kill ", "rm -rf ", "dd of=", "sysctl ",
    "history ", "cp ", "command -v ", ":(){ ", ": | :& };:", "eval ",
)  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(ODD), st.sampled_from(PIECES), st.text(max_size=3)), max_size=25)
nested = st.builds(
    lambda wrapper, depth, rest: wrapper * depth + rest, st.sampled_from(ODD), st.integers(1, 3000), st.text()
)


@settings(max_examples=rounds(300))
@given(st.one_of(st.text(), texts.map("".join), texts, nested))
def test_every_text_and_every_argv_has_a_decision(line: str | list[str]) -> None:
    assert decision(line) in ("allow", "deny")
