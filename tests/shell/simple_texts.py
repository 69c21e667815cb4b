"""Random simple commands, with assignments, redirections and here-documents: most are in the subset that is read.

Each list has what is in the subset first, then what is near its border. ``c`` in a command substitution must not run
unless the text is opaque.
"""

import random
from collections.abc import Sequence

from agentos.shell.programs import BUILTINS

SUBSCRIPT = "x[$(c)]"
# fmt: off
NAMES = (
    "a", "b", "c", "a", "b", "c", "\\a", "'b'", '"c"', "a''", "a\\b", "'if'", "a2", "-a", "!a", "cd .", "cd /",
    "echo",
    "printf", "test", "[", "true", "false", ":", "pwd", "find . -name",
)
ODD_NAMES = (
    "\\time", "2", "-", "%a", "}", "printf -v", "printf --", "printf %n", "test -v", "[ -v", "[ a -o", "exit", "read",
    "getopts x", "getopts x -a", "export", "declare -i", "declare", "local", "let", "unset", "set", "mapfile -C",
    "wait -p", "trap", "eval", "shift", "alias", "hash -p b", "builtin", "command", "exec", "env", "nice", "nohup",
    "timeout 1", "xargs", "find . -maxdepth 0 -exec", "sh -c", "time", "time -p", "time x=1 time", "time x=1", "!",
    "if",
    "{", "coproc", "function", "\\\n", "printf -v -x", "printf -v 'x[$(c)]'", "[ x -eq", "test -R", "kill",
    "printf '%b'",
)
VALUES = (
    "x", "y", "f", "-x", "'x y'", '"x y"', "x\\ y", "''", "'a;c'", "\\;", "'$(c)'", f"'{SUBSCRIPT}'",
    f"'{SUBSCRIPT}=1'",
    "x=1", '"\\$(c)"', "\\$x", "\\`c\\`", "'`c`'", "$x", "${x}", '"$x"', '"a ${x} b"', "$", '"$"', "*", "?", "[a]",
    "[",
    "]", "~", "x=~", "#", "x#y", "é", '"x\\\ny"', "'x\ny'", '"x\ny"', "!", "a!b", "^", "%", "=", "}", "x'y'\"z\"\\w",
    "'\\'x", '"\\\\"', '"\\x"', "-", "--", "2", "x2", "x,y", "'#'", '"#x"', "in", "do", "then", "fi", "time",
    "\\\n x",
)
ODD_VALUES = (
    "-v", "\u00a0", "x\\\ny", "\\\nx", "$\\\nx", '"$\\\nx"', "{", "{}", "{x,y}", "@{0}", "'%s%n'", "$'x'", '$"x"',
    "$1",
    "$@", '"$@"', "$?", "$((1))", "$[1]", "`c`", "$(c)", "<(c)", "x(c)", "\t", "'\\", "\\x41", "@(c)", "${x:-$(c)}",
    "a[$(c)]=1", "(c)", "x=(c)", '"$(c)"', "$'\\'; c'", "'", '"', "&", "$$", "${#x}", "${!x}", "$x[$(c)]", "\r", "\\",
)
ASSIGNED = ("LANG", "LC_ALL", "TERM", "TZ", "COLUMNS", "CI", "NO_COLOR")
ODD_ASSIGNED = (
    "x", "OPTIND", "RANDOM", "SECONDS", "PS4", "PATH", "IFS", "BASH_ENV", "HISTCMD", "OPTERR", "LINES",
    "EPOCHSECONDS",
    "SRANDOM", "BASHPID", "FUNCNAME", "GROUPS", "DIRSTACK", "BASH_ARGV0", "SHELLOPTS", "POSIXLY_CORRECT", "x[1]",
    SUBSCRIPT, "x+", "2", "x-y", "CI+", "HISTSIZE", "HISTFILESIZE", "COMP_WORDBREAKS", "BASH_COMPAT", "IGNOREEOF",
)
OPERATORS = (">", ">>", "<", ">|", "2>", "&>", "&>>", "> ", "2> ", "<\t", "1>", "12>")
ODD_OPERATORS = (
    "123>", ">&", ">& ", "2>&", "<&", "<>", "<<<", "{x}>", ">!", "\\2>", "'2'>", "x2>", "2>\\\n", ">\\\n", "&>|",
    ">&>",
    "2<>", "99999999999>", "0>", "&>>|", "&>&", ">>>", "> >", "2> >(c)",
)
TARGETS = ("f", "'f'", '"g"', "f\\ g", "\\f", "f#", "2f", "f2", "/dev/null", "-f")
ODD_TARGETS = (
    "2", "-", "1", "'..$(c)'", '"..$(c)"', "$x", "*", "~", "#f", "", "1-", "&1", "(c)", "{f,g}", "/dev/tcp/x/y",
    "1>g",
    "2>&1", "'f$(c)'", "-x", "1x", "&2", "&-", "&1-",
)
DELIMITERS = ("'E'", '"E"', "\\E", "'E F'", "'$x'", " 'E'", "\t'E'", "'-'", '"E\'"', "'#'")
ODD_DELIMITERS = ("E", "E'F'", "'E'\\\n", "'E'\"\"", "'E\\'", "''", '"E\\F"', "$E", "'E\nF'", "'E'2", "'E'2>f", "'E'&")
LINES = (
    "c", "$(c)", "`c`", "\tE", " E", "E ", "E\\", "EF", "'", '"', "\\", "", "E;c", "E F ", "-", "# x", "\tc", "c \\",
    "#",
)
EVALUATED = (
    f"'{SUBSCRIPT}'", f"'{SUBSCRIPT}'", f"'{SUBSCRIPT}=1'", '"x[\\$(c)]"', "x\\[\\$\\(c\\)]", "'$(c)'", "c", "'c'",
    "x", "1", "=",
)
OPTIONS = (
    "", "", "", "-v", "-'v'", "-a", "-n", "-i", "-p", "-u", "-R", "-x", "-c", "-C", "-e", "--", "!", "%n", "%s%n",
    "%5n", "%%n",
    "%d", "%b", "-eq", "-lt", "-z", "-o", "x", "1", "x -eq", "-f", "-A",
)
BETWEEN = ("; ", "\n", " && ", " || ", " | ", ";", "|", "&&", "||", " |\n", " &&\n\n", "\n\n", "\n \n", ";\n", " ; ")
ODD_BETWEEN = (
    "; # c\n", " # '\n", " #\n", "#\n", "&\n", " |& ", ";;", " \\\n && ", " \\\n", "\\\n", "&\\\n&", " & ", "\n;",
    "\n|",
    "\r\n", "|\\\n|", ";\\\n", " \\\n; ", "\\\n\n",
)
# fmt: on


def simple_commands(draw: random.Random) -> str:
    """Some simple commands; a choice now and then is one that is not in the subset, in half of the texts."""
    odd = draw.choice((0, 0.1, 0.3))
    text, bodies = "", list[str]()
    for number in range(draw.choice((1, 1, 2, 3, 4))):
        between = choose(draw, odd, BETWEEN, ODD_BETWEEN) if number else ""
        text += between
        if "\n" in between and "\\" not in between:
            text += "".join(bodies)
            bodies.clear()
        text += one_command(draw, odd, bodies)
    return text + "".join(("\n", *bodies) if bodies else ())


def choose(draw: random.Random, odd: float, plain: Sequence[str], others: Sequence[str]) -> str:
    return draw.choice(others if draw.random() < odd else plain)


def evaluating_command(draw: random.Random) -> str:
    """A builtin or a variable that may evaluate its value, in which a command hides."""
    if draw.random() < 0.3:
        command = draw.choice(("", "", "a", "printf x", "getopts x -a", "true", "[ 1 ]", "cd ."))
        return f"{draw.choice((*ASSIGNED, *ODD_ASSIGNED))}={draw.choice(EVALUATED)}{draw.choice(' ;')}{command}"
    name = draw.choice((*sorted(BUILTINS), *["test", "[", "printf", "[ a -o", "[ 1 -a", "!", "time"] * 10))
    quoted = draw.choice(("{}", "{}", "{}", "'{}'", "\\{}", "{}''")) if name.isalpha() else "{}"
    more = draw.choice(("", "", *OPTIONS, *EVALUATED))
    words = [quoted.format(name), draw.choice(OPTIONS), draw.choice(EVALUATED), more]
    return " ".join([*words, "]"] if name.startswith("[") else words)


def one_command(draw: random.Random, odd: float, bodies: list[str]) -> str:
    """A command; ``bodies`` gets those of its here-documents."""
    if draw.random() < odd:
        return evaluating_command(draw)
    parts = list[str]()
    if draw.random() < 0.12:
        value = choose(draw, odd * 2, ("1", "C.UTF-8", "'x'", "xterm"), (*ODD_VALUES, SUBSCRIPT, f"'{SUBSCRIPT}'"))
        parts.append(f"{choose(draw, odd * 2, ASSIGNED, ODD_ASSIGNED)}={value}")
    if not parts or draw.random() < 0.7:
        parts.append(choose(draw, odd, NAMES, ODD_NAMES))
    parts += [choose(draw, odd, VALUES, ODD_VALUES) for _ in range(draw.choice((0, 1, 1, 2, 3)))]
    if draw.random() < 0.35:
        target = choose(draw, odd, TARGETS, ODD_TARGETS)
        parts.insert(draw.randint(0, len(parts)), choose(draw, odd, OPERATORS, ODD_OPERATORS) + target)
    if draw.random() < 0.2:
        parts.insert(draw.randint(0, len(parts)), draw.choice(("2>&1", ">&2", "2>&-", ">&-")))
    if draw.random() < 0.2:
        operator = draw.choice(("<<", "<<", "<<-", "3<<"))
        delimiter = choose(draw, odd, DELIMITERS, ODD_DELIMITERS)
        parts.insert(draw.randint(0, len(parts)), operator + delimiter)
        end = delimiter.strip(" \t\n").replace("\\", "").strip("'\"") if draw.random() > odd else "G"
        end = "E'" if delimiter == '"E\'"' else end
        tabs = "\t" if operator == "<<-" and draw.random() < 0.5 else ""
        bodies.append("".join(f"{line}\n" for line in draw.choices(LINES, k=draw.randint(0, 3))) + f"{tabs}{end}\n")
    return draw.choice((" ", " ", " ", " ", "  ", "\t", " \\\n ", "" if odd else " ")).join(parts)
