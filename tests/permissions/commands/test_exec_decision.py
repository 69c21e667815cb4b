"""Whether a command may run: by its parts, by where it reads and writes, and by what nobody may."""

from agentos.kernel.ports import Decision, Right
from agentos.permissions.exec_request import ExecRequest
from agentos.permissions.rule import PermissionSet, Rule
from agentos.permissions.sets.examples import decide_by_set
from agentos.shell.reader import parse_text, parse_words
from tests.permissions.strategies import NAMES
from tests.support.runs.rows import each_row

GRANTS = (
    *(("allow", "commands", text) for text in ("git *", "cat *", "sh *", "env *", "find *", "cd *", "echo *", "tee *")),
    ("allow", "read", "/data/**"),
    ("allow", "write", "/place/**"),
    ("deny", "write", "/place/keep"),
    ("ask", "commands", "git push *"),
)


def judged(line: str | list[str], *more: tuple[str, str, str], variables: tuple[str, ...] = ()) -> Decision:
    written = tuple(Rule(effect, kind, text, "here") for effect, kind, text in (*GRANTS, *more))  # type: ignore[arg-type]
    reading = parse_text(line) if isinstance(line, str) else parse_words(line)
    wanted = ExecRequest(reading, "/place", jailed=False, variables=variables)
    return decide_by_set(PermissionSet("here", written), NAMES, Right("exec", wanted))


@each_row(
    ("line", "expected"),
    [
        ("git status", "allow"),
        (["git", "status"], "allow"),
        ("ls", "deny"),
        ("git status | ls", "deny"),
        ("git status `ls`", "deny"),
        ("sh -c 'git log; ls'", "deny"),
        ("sh -c 'git log'", "deny"),
        (["sh", "-c", "ls"], "deny"),
        ("git status; git push", "ask"),
        ("git push; ls", "deny"),
        ("$x", "deny"),
        ("cat < /data/x > out", "allow"),
        ("cat < /data/../etc/passwd", "deny"),
        ("echo > /place/../etc/x", "deny"),
        ("echo > keep", "deny"),
        ("echo 2> /dev/null", "allow"),
        ("echo > $x", "deny"),
        ("cd /etc; cat < passwd", "deny"),
        ("cd /etc; cat < /data/x", "allow"),
        ("cd /etc && > rel", "deny"),
        ("cat > out <<'E' && git log\nls; $(ls)\nE", "allow"),
        ("cat > out <<E\nx\nE", "deny"),
        ("echo $x *.py ~", "allow"),
        ("cat $x", "allow"),
        ("git $x push", "ask"),
        ("env -C /etc sh -c 'cat < passwd'", "deny"),
        ("env -iC /etc sh -c 'cat < passwd'", "deny"),
        ("env --chdir=/etc sh -c 'echo > x'", "deny"),
        ("env sh -c 'echo > x'", "deny"),
        (["env", "git", "log"], "deny"),
        (["find", ".", "-delete"], "deny"),
        (["find", ".", "-name", "x"], "allow"),
        ("find / -execdir sh -c 'echo > x' ';'", "deny"),
    ],
)
def test_every_part_and_every_place_has_to_be_granted(line: str | list[str], expected: str) -> None:
    assert judged(line).effect == expected


def test_a_refusal_says_which_part_no_rule_allows() -> None:
    assert judged("git status; ls -l").reason == "EXEC: no rule of here allows ls -l"
    assert judged("echo > /etc/x").reason == "EXEC: no rule of here allows > /etc/x"
    decision = judged("echo > keep")
    assert decision.rule == "deny write /place/keep (here)"


def test_the_refusal_of_an_opaque_text_names_the_construct_and_what_to_do() -> None:
    assert judged("git log $(ls)").reason == (
        "EXEC: no rule of here allows git log $(ls): it uses command substitution `$(`; "
        'only simple commands can be allowed by patterns: grant commands = ["*"] or rewrite'
    )


def test_an_opaque_text_is_denied_before_it_is_asked_and_asked_before_it_is_allowed() -> None:
    line = "x=$(true)"
    allow, ask, deny = (((effect, "commands", "*")) for effect in ("allow", "ask", "deny"))

    assert judged(line).effect == "deny"
    assert judged(line, allow).effect == "allow"
    assert judged(line, ask).effect == "ask"
    assert judged(line, allow, ask).effect == "ask"
    assert judged(line, allow, ask, deny).effect == "deny"
    assert judged("((1))", allow, deny).rule == "deny commands * (here)"


@each_row(
    "line",
    [
        "(curl x)", "if true; then curl x; fi", "a & curl x", "! curl x", "$(curl x)", "`curl x`", "sh -c 'a; curl x'",
        "eval curl x", "env -i curl x", "find . -exec curl x +", "cat <<E\n$(curl x)\nE", "while curl x; do a; done",
    ],
)  # fmt: skip
def test_a_denial_beside_a_grant_of_everything_is_looked_for_where_commands_begin(line: str) -> None:
    everything, denial = ("allow", "commands", "*"), ("deny", "commands", "curl x")

    assert judged(line, everything).effect != "deny"
    assert judged(line, everything, denial).rule == "deny commands curl x (here)"


@each_row(
    "line",
    [
        "cat > f <<'E'\ncurl x\nE\n(a)",
        "(echo curl x)",
        "(grep 'curl x' f)",
        "(man curl)",
        "for i in curl x; do a; done",
    ],
)
def test_a_denial_is_not_looked_for_among_arguments(line: str) -> None:
    assert judged(line, ("allow", "commands", "*"), ("deny", "commands", "curl *")).effect == "allow"


def test_what_cannot_be_seen_beforehand_only_a_grant_of_everything_covers() -> None:
    everything = ("allow", "commands", "*")

    for line in ("echo $x > $x", "echo > $x", "cd /; echo > x", 'eval "$x"'):
        assert judged(line).effect == "deny"
        assert judged(line, everything).effect == "allow"
    assert judged("$x", everything).effect == "ask"  # it may be what one would be asked about


def test_a_variable_that_changes_what_runs_only_a_grant_of_everything_covers() -> None:
    refused = judged("git status", variables=("PATH",))

    assert refused.effect == "deny"
    assert refused.reason.startswith("EXEC: no rule of here allows env.PATH; it may change what a command does")
    assert judged("git status", ("allow", "commands", "*"), variables=("PATH",)).effect == "allow"


@each_row(
    "line",
    [
        "sudo ls",
        "/usr/bin/sudo ls",
        "env sudo ls",
        "sh -c 'sudo ls'",
        "git status; sudo ls",
        "rm -rf /",
        "echo x > /dev/sda",
        "cat < /home/ada/.ssh/id_ed25519",
        "echo > .env",
        ":(){ :|:& };:",
    ],
)
def test_the_default_denials_come_before_every_grant(line: str) -> None:
    decision = judged(line, ("allow", "commands", "*"), ("allow", "read", "/**"), ("allow", "write", "/**"))

    assert decision.effect == "deny"
    assert decision.rule.endswith("(default denials)")


def test_a_denial_or_a_question_for_a_part_holds_for_all_of_it_under_a_grant_of_everything_too() -> None:
    everything = ("allow", "commands", "*")

    assert judged("ls; git push", everything).effect == "ask"
    assert judged("ls; curl x", everything, ("deny", "commands", "curl *")).rule == "deny commands curl * (here)"
    assert judged("ls; echo > keep", everything).rule == "deny write /place/keep (here)"
