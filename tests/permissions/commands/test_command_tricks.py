"""An agent that may run ``echo`` and ``git status`` tries to run something else, or something else under that name."""

from agentos.kernel.ports import Right
from agentos.permissions.exec_request import ExecRequest
from agentos.permissions.rule import PermissionSet, Rule
from agentos.permissions.sets.examples import decide_by_set
from agentos.shell.reader import parse_text
from tests.permissions.strategies import NAMES
from tests.support.runs.rows import each_row

BUILTINS = ("echo", "printf", "test", "[", "export", "declare", "local", "read", ":")
GRANTS = ("git status", "env *", "find *", *(f"{name} *" for name in BUILTINS))


def passes(line: str, *more: tuple[str, str, str]) -> bool:
    """Whether it may run where these commands are granted, and every file to read and write."""
    granted = (*(("allow", "commands", text) for text in GRANTS), ("allow", "read", "/**"), ("allow", "write", "/**"))
    rules = tuple(Rule(effect, kind, text, "here") for effect, kind, text in (*granted, *more))  # type: ignore[arg-type]
    right = Right("exec", ExecRequest(parse_text(line), "/place", jailed=True))
    return decide_by_set(PermissionSet("here", rules), NAMES, right).effect == "allow"


EVERYTHING = ("allow", "commands", "*")

UNDERSTOOD = [
    "echo a", "echo 'a; rm b'", "git status && echo done", 'echo "$x" *.py ~', "printf '%s\\n' \"$x\"",
    "LC_ALL=C.UTF-8 git status", "echo <<'E'\n$(id)\nE", "find . -name '*.py'", "git status 2>&1 > log",
    "TERM=dumb git status", "[ a = a ] || echo z", "echo a # b; id", "git status | echo; : ${x}",
]  # fmt: skip


@each_row("line", UNDERSTOOD)
def test_a_line_of_granted_simple_commands_passes(line: str) -> None:
    assert passes(line)


@each_row(
    "line",
    [
        "for i in a b; do echo $i; done", "FOO=1 git status", "x=1; echo $x", '[ -n "$x" ] && echo y',
        '[ "$x" = y ] || echo z', "export A=1 B=\"$x\"", "read -r x < f; echo $x",
        "echo $((1 + 2)) ${x:1:2} ${x%.py}",
        "env A=1 git status", "find . -name '*.py' -exec echo {} +", "declare -x x=1", ": ${x:=y}",
    ],
)  # fmt: skip
def test_what_is_harmless_but_more_than_simple_commands_needs_a_grant_of_everything(line: str) -> None:
    """What the reader no longer understands under narrow grants (decision 26)."""
    assert not passes(line)
    assert passes(line, EVERYTHING)


@each_row(
    "text",
    [
        "echo a; id", "echo a\nid", "echo a|id", "echo a&id", "echo a&&id", "echo a||id", "echo $(id)", "echo `id`",
        'echo "$(id)"', "echo <(id)", "echo > >(id)", "(id)", "{ id; }",
        "! id", "if echo; then id; fi", "while id; do echo; done", "for i in $(id); do echo; done",
        "case x in *) id;; esac", "case x in $(id)) echo;; esac", "f() { id; }; git status",
        "echo() { id; }; echo", "git() { id; }; git status", "time id", "coproc id", "echo <<E\n$(id)\nE",
        "echo <<E\n`id`\nE", "echo <<E\n${x:-$(id)}\nE", "echo <<< $(id)", "echo ${x:-$(id)}",
        'echo "${x:-`id`}"', "echo ${x/$(id)/y}", "echo ${x#<(id)}", "echo $((1 + $(id)))", "echo # c\nid",
        "echo a#\nid", "echo '\n'id;id", "echo \\\nid;id", "echo $'\\'';id;'", "echo > x; ./x", "-c id",
        "echo < <(id)",
    ],
)  # fmt: skip
def test_no_other_command_comes_along(text: str) -> None:
    assert not passes(text)


@each_row(
    "text",
    [
        "echo $((x))", "echo $((a[x]))", "((x))", "let x", "for ((x; x; x)); do echo; done", "echo ${y:x}",
        "echo ${y:1:x}", "echo ${a[x]}", "echo ${a[$x]}", "echo ${#a[x]}", "a[x]=1", "a[$x]=1 echo",
        'a["$(id)"]=1', "a=([x]=1)", "[[ x -eq 1 ]]", "[[ -v a[x] ]]", "[ -v x ]", "test -v 'a[$(id)]'", "[ $x ]",
        "[ $x = y ]", 'test "$x" "$y"', "test {-v,x}", "printf -v 'a[$(id)]' x", 'printf "$x" y z',
        "printf {-v,'a[$(id)]'} x", "printf $x y", "printf a%n PATH", 'printf "a$x" PATH', "printf -v x %5ln PATH",
        "printf -- %n PATH", "printf -- x; printf [-]v x", "read 'a[$(id)]'", "read $x",
        'read "$x"', "declare 'a[$(id)]=1'", "declare -i x=y", "declare -a x='($(id))'", 'declare x="$y"',
        'local x="$y"', "declare -n x=PATH", "declare $x", 'export "$x"', "export -n $x", "unset 'a[$(id)]'",
        "echo ${x@P}", "echo ${x@E}", "echo ${!x}", "echo ${!x@P}", 'echo $"x"', "echo ${x:=$y} ${!x}",
    ],
)  # fmt: skip
def test_no_value_is_evaluated_as_code(text: str) -> None:
    """Arithmetic evaluates a variable's text, a subscript in that, a command in this: ``x='a[$(id)]'; echo $((x))``."""
    assert not passes(text)


@each_row(
    "text",
    [
        "PATH=/tmp; git status", "PATH=/tmp git status", "PATH+=:. git status", "export PATH=/tmp",
        "export PA\\TH=/tmp", "export A=1 PATH=/tmp", "declare -x PATH=.", "read PATH",
        "for PATH in /tmp; do git status; done",
        "select PATH in /tmp; do git status; done", "echo ${PATH:=/tmp}", "echo ${PATH=/tmp}", 'echo "${PATH:=x}"',
        "printf -v PATH /tmp", "mapfile PATH", "getopts a PATH", "wait -p PATH", "env PATH=. git status",
        "env -S 'PATH=. git status'", "env - PATH=. git status", "time PATH=. git status", "! PATH=. git status",
        "{PATH}>f git status", "command export x=$y", "builtin export x=$y", "\\export x=$y", "'export' x=$y",
        "LD_PRELOAD=./x git status", "BASH_ENV=x bash -c echo", "ENV=x sh -c echo", "IFS=s git status",
        "PS4='$(id)' git status", "GIT_SSH_COMMAND=id git status", "GIT_EXTERNAL_DIFF=id git status",
        "PAGER=id git status",
        "EDITOR=id git status", "HOME=/tmp git status", "XDG_CONFIG_HOME=/tmp git status",
        "POSIXLY_CORRECT=1; git status", "BASH_FUNC_git=1 git status",
        "env 'BASH_FUNC_git%%=() { id; }' bash -c echo", "SHELLOPTS=x git status",
        "GLOBIGNORE=x; echo *", "LANG=zh_TW.BIG5; echo", "export LC_ALL=ja_JP.SJIS", "PYTHONPATH=. git status",
        "NODE_OPTIONS=x git status", "TEXTDOMAINDIR=. git status", "hash -p /tmp/x git", "alias git=id",
        "enable -f x y",
        "shopt -s expand_aliases", "set -k", "set -o posix", "set $x", "trap id EXIT", 'trap "$x" EXIT',
        "complete -C id x", "compgen -C id", "bind -x 'a:id'", "fc -e id", "jobs -x id", "mapfile -C id x",
        "history -s id",
    ],
)  # fmt: skip
def test_nothing_makes_another_program_of_a_name(text: str) -> None:
    assert not passes(text)


@each_row(
    "text",
    [
        "$x", "'' $x", "e$x a", "ec{ho,x}", "*", "./echo a", "/tmp/git status", "../bin/echo", "~/echo", "git $x",
        "git {status,x}", "git stat*", "git status $x", "git 'status x'", "git status x", "git sta\\\ntus",
        "eval $x", "eval id", "eval 'echo a' 'b; id'", "eval echo '$(id)'", "bash -c id", 'bash -c "$x"',
        "bash -c 'echo $(id)'", "sh -c \"echo $(id)\"", "bash x", "bash <<< id", "echo id | sh", "source x",
        ". /dev/stdin <<< id",
        "exec id", "command id", "builtin eval id", "env id", "env -i $x", "env $x", "env -C / id",
        "env --split-string='git status; id' x", "nice id", "nohup id", "timeout 1 id", "echo id | xargs", "xargs id",
        "xargs env",
        "find . -exec id ;", "find . -exec id \\;", "find . -exec echo \\; -exec id \\;", "find . -ok id \\;",
        "find . -execdir id +", "find $x", 'find "$x" "$y"', "find . {-exec,id} \\;",
        "find . -exec sh -c 'echo {}' \\;",
        "busybox id", "setsid id", "stdbuf -o0 id", "sudo id", "su -c id", "watch id", "flock x -c id", "flock x id",
        "strace id", "chroot . id", "unshare id", "nsenter id", "parallel id", "script -c id", "xargs -I{} sh -c {}",
        "echo x > /dev/tcp/h/1", "echo < /dev/udp/h/1", "echo > $x", 'echo > "/dev/tcp/$x"', "exec 3<>/dev/tcp/h/1",
        "echo >&$x", "echo &> {a,b}",
    ],
)  # fmt: skip
def test_nothing_runs_by_a_name_or_a_place_that_was_not_granted(text: str) -> None:
    assert not passes(text)


@each_row(
    "line",
    ["dash -c \"a$'b'\"", "zsh -c 'a'", "bash -O extglob -c 'a'", "bash -i -c 'a'", "bash --norc -euo pipefail -c 'a'"],
)
def test_a_shell_needs_a_grant_of_everything(line: str) -> None:
    assert not passes(line, *(("allow", "commands", f"{name} *") for name in ("dash", "zsh", "bash", "a")))
    assert passes(line, EVERYTHING)


@each_row(
    "line",
    [
        "a\0b", "a\rb", "a \x0c b", "a '\x01'", "a\u00a0b", "a\u3000b", "a \u2028 b", "a\x85b", "a \ud800",
        "ec\\\nho x",
        "a &\\\n& b", "a 'b", 'a "b', "a `b", "a $(b", "a ${b", "a &&", "a |", "(a", "a)", "{ a", "if a",
        "if a; then b",
        "for x in", "a <<E", "a <<E\nb", "a <<$x\nE\n$x", "a <<E\\\nF\nEF", "a <<E <<F\nE\nF", "a <<E\nx\\\nE\nE",
        "coproc a",
        "time { a; }", "! ! a", "{a}>f", "$[1+1]", "a $[x]", "a @(b|c)", "a[1 + 2]=3", "a ${x:-<(id)}",
        'a "${x:-\'y\'}"',
        "${ id; }", "[[ a", "a ]] | [[ b", "((a) ; b)", "a & & b", "a () b", "function", "a\\", "a &", "a <<'E'\nb",
        "a; b c",
    ],
)  # fmt: skip
def test_what_is_broken_or_could_be_read_in_two_ways_is_not_granted_by_patterns(line: str) -> None:
    assert not passes(line, ("allow", "commands", "a *"), ("allow", "commands", "b"))


@each_row(
    "line",
    [
        "x $(id)", "x `id`", 'x "$(id)"', 'x "a `id` b"', "x <(id)", "x > >(id)", "x=$(id)", "x=(a $(id))",
        "x ${y:-$(id)}",
        'x "${y:-$(id)}"', "x ${y#`id`}", "x ${y/$(id)/z}", "x <<E\n$(id)\nE", "x <<E\n`id`\nE\n",
        "x <<E\n${y:-$(id)}\nE",
        "x <<-E\n\t$(id)\n\tE", "x < $(id)", "x > $(id)", "x <<< $(id)", "x $((1 + $(id)))", "((x = $(id)))",
        "x[$(id)]=1",
        "x ${y[$(id)]}", "[[ $(id) ]]", "for x in $(id); do y; done", "case $(id) in x) y;; esac",
        "case x in $(id)) y;; esac",
        "x $(y $(z $(id)))", "x `y \\`id\\``", "(x; (id))", "f() { id; }", "x 2>&1 | id", "x <<E | id\ny\nE",
        "x <<'E' && id\ny\nE", "export x=$(id)", "declare x=`id`", "x && ! id", "trap id EXIT", "eval id",
        "eval 'x;' id",
        "bash -c id", "sh -c 'x; id'", "bash -ec 'x $(id)' y", "echo {a,$(id)}", "x $(# )\nid)",
        "x 'y' | while read z; do id; done", "coproc_ || id", "select x in y; do id; done",
        "for ((i=0; i<3; i++)); do id; done",
        'x "$(y "$(id)")"', "x $(y <<E\nz\nE\nid\n)", "x $'a' \"$(id)\"", "sh -c \"sh -c 'sh -c id'\"", "su -c id",
        "watch id",
        "env id", "nice -n 5 id", "timeout -k 1 -s KILL 5s id", "xargs -0 -n 1 id", "find . -exec id ';'", "time id",
        "/bin/id",
    ],
)  # fmt: skip
def test_a_denied_command_is_refused_beside_a_grant_of_everything_wherever_it_hides(line: str) -> None:
    assert not passes(line, EVERYTHING, ("deny", "commands", "id *"))
