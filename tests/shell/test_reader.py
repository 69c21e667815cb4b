"""Which texts are read as simple commands, what these are, and which construct makes any other text opaque."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.shell.reader import FAILED, MAX_LENGTH, parse_text, parse_words
from agentos.shell.reading import Command, Commands, Opaque, Redirect
from agentos.shell.scanner import Scanner
from tests.support.runs.rows import each_row

from .texts import PIECES


def words(commands: tuple[Command, ...]) -> list[list[str | None]]:
    return [[word.text for word in command.words] for command in commands]


def understood(text: str) -> Commands:
    reading = parse_text(text)
    assert isinstance(reading, Commands), reading
    return reading


def opaque(text: str) -> Opaque:
    reading = parse_text(text)
    assert isinstance(reading, Opaque), reading
    return reading


@each_row(
    ("text", "found"),
    [
        ("git status", [["git", "status"]]),
        ("a; b\nc && e || f | g", [["a"], ["b"], ["c"], ["e"], ["f"], ["g"]]),
        ("a;\n\n b ;", [["a"], ["b"]]),
        ("a |\n b &&\n\n c", [["a"], ["b"], ["c"]]),
        ("a # b; c\nd", [["a"], ["d"]]),
        ("a &&# c\nb", [["a"], ["b"]]),
        ("a#b c'#'d \\#e", [["a#b", "c#d", "#e"]]),
        ("a \\\n b \\\n", [["a", "b"]]),
        ("a\t\\\nb", [["a", "b"]]),
        ("[ -f x ] && a", [["[", "-f", "x", "]"], ["a"]]),
        ("[ ! -f x ]", [["[", "!", "-f", "x", "]"]]),
        ("CI=1 LANG=C.UTF-8 b", [["b"]]),
        ("TZ=UTC", []),
        ("'if' \\then \"do\"", [["if", "then", "do"]]),
        ("echo if then ! { }"[:-4], [["echo", "if", "then", "!"]]),
        ("echo a=b PATH=x", [["echo", "a=b", "PATH=x"]]),
        ("rm > log -rf x", [["rm", "-rf", "x"]]),
        ("a2>f b", [["a2", "b"]]),
        ("'2'>f", [["2"]]),
        ("a 2>f", [["a"]]),
        ("a 2 >f", [["a", "2"]]),
        ("a 2>&1 >&2 2>&- b", [["a", "b"]]),
        ("-c 'echo no'", [["-c", "echo no"]]),
        ("echo 100% ^ @ a,b %x", [["echo", "100%", "^", "@", "a,b", "%x"]]),
        ("a <<'E' | b && c\nd $(e)\nE\nf", [["a"], ["b"], ["c"], ["f"]]),
        ("a <<-\"E\"\n\td\n\tE\nf", [["a"], ["f"]]),
        ("a <<\\E\nd\nE", [["a"]]),
        ("a <<'E' b <<'F'\nE\nx\nF\nc", [["a", "b"], ["c"]]),
        ("a <<'E F' 'x\ny'\nd\nE F\nc", [["a", "x\ny"], ["c"]]),
        ("printf '%s 100%%\\n' \"$x\"", [["printf", "%s 100%%\\n", None]]),
        ("find . -name x", [["find", ".", "-name", "x"]]),
        ("", []),
        ("\n # a\n", []),
    ],
)  # fmt: skip
def test_a_text_of_simple_commands_is_read(text: str, found: list[list[str]]) -> None:
    assert words(understood(text).commands) == found


@each_row(
    ("word", "value"),
    [
        ("'a b'", "a b"), ('"a b"', "a b"), ("a\\ b", "a b"), ("r''m", "rm"), ('"r"m', "rm"), ("\\rm", "rm"),
        ("''", ""), ("'a'\\''b'", "a'b"), ('"a\\$b\\`c\\"d\\\\e\\f"', 'a$b`c"d\\e\\f'), ('"$"', "$"), ("a$", "a$"),
        ("HEAD~1", "HEAD~1"), ("a#b", "a#b"), ("é", "é"), ("\\é", "é"), ("'\u3000'", "\u3000"), ('"a\nb"', "a\nb"),
        ('"a\\\nb"', "ab"), ("[", "["), ("a[b", "a[b"), ("]a[", "]a["), ("a=b", "a=b"), ("x,y", "x,y"), ("!", "!"),
        ("a!b", "a!b"), ("'*'", "*"), ("\\*", "*"), ('"~"', "~"), ("'{a,b}'", "{a,b}"), ("a}", "a}"), ("-", "-"),
        ('"^a$|b$"', "^a$|b$"), ("'$x'", "$x"), ('"a$\\|b$"', "a$\\|b$"), ('"$\\$x"', "$$x"), ("\\$x", "$x"),
    ],
)  # fmt: skip
def test_quotes_are_removed_as_bash_removes_them(word: str, value: str) -> None:
    assert words(understood(f"x {word}").commands) == [["x", value]]


@each_row(
    ("word", "several"),
    [
        ("$x", True), ("${x}", True), ('"$x"', False), ("a$x", True), ('"a ${x} b"', False), ("*", True),
        ("a?", True),
        ("[ab]", True), ("~", False), ("~x", False), ("~/x", False), ("x=~", False), ("x:~/y", False),
        ('x=""~', False),
    ],
)  # fmt: skip
def test_an_argument_that_only_bash_will_know_has_no_text(word: str, several: bool) -> None:
    [command] = understood(f"x {word}").commands

    assert (command.words[1].text, command.words[1].source, command.words[1].several) == (None, word, several)


@each_row(
    ("text", "found"),
    [
        ("a > f", [("f", True)]), ("a >> f", [("f", True)]), ("a >| f", [("f", True)]), ("a &> f", [("f", True)]),
        ("a &>> f", [("f", True)]), ("a < f", [("f", False)]), ("a 2> f", [("f", True)]), ("a 2>&1 >&2", []),
        ("a >&- 2>&-", []), ("a <<'E'\nE", []), ("> f", [("f", True)]), ("a>f<g", [("f", True), ("g", False)]),
        ("a > 'f g' 2> \\h", [("f g", True), ("h", True)]), ("> f; cd x", [("f", True)]),
        ("cd x; a > /f", [("/f", True)]),
    ],
)  # fmt: skip
def test_redirections_say_which_file_and_whether_it_is_written(text: str, found: list[tuple[str, bool]]) -> None:
    assert [(redirect.target.text, redirect.writes) for redirect in understood(text).redirects] == found


@each_row(
    ("text", "construct"),
    [
        *((f"{word} a", f"the reserved word `{word}`") for word in (
            "if", "then", "elif", "else", "fi", "do", "done", "case", "esac", "while", "until", "for", "select",
            "function", "}", "!", "[[", "]]", "coproc", "time", "in",
        )),
        ("a; ! b", "the reserved word `!`"), ("a |\ntime -p b", "the reserved word `time`"),
        ("a & b", "the operator `&`"), ("a |& b", "the operator `|&`"), ("a;; b", "the operator `;;`"),
        ("(a)", "an unquoted `(`"), ("((a))", "an unquoted `(`"), ("f() { a; }", "an unquoted `(`"), ("x=(a)", "("),
        ("a )", "an unquoted `)`"), ("{ a; }", "an unquoted `{`"), ("a {b,c}", "an unquoted `{`"), ("a {}", "`{`"),
        ("a $(b)", "command substitution `$(`"), ('a "$(b)"', "command substitution `$(`"), ("a `b`", "a backquote"),
        ('a "`b`"', "a backquote"), ("a <(b)", "process substitution `<(`"),
        ("a > >(b)", "process substitution `>(`"),
        ("a $'b'", "the quote `$'`"), ('a $"b"', 'the quote `$"`'), ("a $((1))", "arithmetic"), ("a $[1]", "`$[`"),
        ("a ${b:-c}", "`${` of more than a name"), ("a ${!b}", "`${`"), ("a ${b[0]}", "`${`"), ("a $1", "`$1`"),
        ("a $?", "`$?`"), ('a "$@"', "`$@`"), ("a $\\\nb", "expansion"), ('a "$\\\nb"', "expansion"),
        ("a >& b", "the operator `>&`"), ("a >&1b", "`>&`"), ("a >&2-", "`>&`"), ("a <& 3", "the operator `<&`"),
        ("a <> b", "the operator `<>`"), ("a <<< b", "the operator `<<<`"), ("a {b}> c", "an unquoted `{`"),
        ("a <<E\nb\nE", "delimiter is not quoted"), ("a <<'E'\nb", "without its end"), ("a <<E'F'\nEF", "delimiter"),
        ("a <<'E' <<'F'\nE", "without its end"), ("a <<'E'2>f\nE", "delimiter"),
        ("$a b", "a command whose name is not known"), ("~/a", "a command whose name"),
        ("a*", "a command whose name"), ("[a]b", "a command whose name"),
        ("a > $b", "a redirection to a name"), ("a > b*", "a redirection to a name"), ("a < ~/b", "a redirection to"),
        ("a >", "a redirection without a file"), ("a > ; b", "without a file"), ("a > > b", "without a file"),
        ("a > 2> b", "a number in front"), ("a 999> b", "a number in front"),
        ("a > /dev/tcp/h/1", "the network"), ("cd a; b > c", "a relative path after `cd`"),
        ("cd a &&\n> b", "a relative path after `cd`"),
        ("PATH=a b", "setting PATH"), ("PATH=a", "setting PATH"), ("OPTIND=1", "setting OPTIND"), ("PS4=a b", "PS4"),
        ("CI+=1 a", "setting CI"), ("CI=$a b", "setting CI"), ("a[1]=b", "setting a"), ("LANG=zh_TW.BIG5", "LANG"),
        ("eval a", "the builtin `eval`"), ("export A=1", "the builtin `export`"), (". a", "the builtin `.`"),
        ("read 'a[b]'", "the builtin `read`"), ("command a", "`command`, which runs"), ("exec a", "`exec`, which"),
        ("test -v 'a[b]'", "`test` with `-v`"), ("[ a -o -v b ]", "`[` with `-v`"), ("[ $a ]", "not known"),
        ("[ -R a ]", "`-v`"), ("printf -v a b", "`printf`"), ("printf -- a", "`printf`"),
        ("printf a%n b", "`printf`"),
        ("printf %%%n b", "`printf`"), ("printf '%-5.*ln' b", "`printf`"), ("printf $a", "`printf`"),
        ("env a", "`env`, which runs its arguments"), ("/usr/bin/env", "`env`"), ("xargs a", "`xargs`"),
        ("sh a", "`sh`, which is a shell"), ("/bin/bash", "a shell"), ("busybox a", "`busybox`"),
        ("\\time a", "`time`"),
        ("find . -exec a ;", "`find`"), ("find . -delete", "`find`"), ("find $x", "`find`"), ("find *", "`find`"),
        ("find . -fprintf a b", "`find`"), ("%1", "the job `%1`"),
        ("a &&", "an operator without a command"), ("; a", "an operator without"),
        ("a && ; b", "an operator without"),
        ("a | | b", "an operator without"), ("a 'b", "a quote that is not closed"),
        ('a "b', "a quote that is not closed"),
        ("a\\", "a backslash at the end"), ("ec\\\nho a", "an escaped newline"),
        ("a\\ \\\nb", "an escaped newline"), ("a &\\\n& b", "operator"),
        ("a\rb", "control character '\\r'"), ("a '\x01'", "control character"), ("a\0b", "control character"),
        ("a \x85", "control character"), ("a \ud800", "control character"), ("a\u00a0b", "the blank"),
        ("a\u3000b", "the blank"), ("a \u2028 b", "the blank"),
    ],
)  # fmt: skip
def test_everything_else_is_opaque_and_the_construct_is_named(text: str, construct: str) -> None:
    assert construct in opaque(text).construct


@each_row(
    "text",
    [
        "x $(id)", "x `id`", 'x "$(id)"', 'x "a `id` b"', "x <(id)", "x > >(id)", "x=$(id)", "x=(a $(id))",
        "x ${y:-$(id)}", 'x "${y:-$(id)}"', "x ${y#`id`}", "x ${y/$(id)/z}", "x <<E\n$(id)\nE", "x <<E\n`id`\nE\n",
        "x <<E\n${y:-$(id)}\nE", "x <<-E\n\t$(id)\n\tE", "x < $(id)", "x > $(id)", "x <<< $(id)", "x $((1 + $(id)))",
        "((x = $(id)))", "x[$(id)]=1", "x ${y[$(id)]}", "[[ $(id) ]]", "for x in $(id); do y; done",
        "case $(id) in x) y;; esac", "case x in $(id)) y;; esac", "x $(y $(z $(id)))", "x `y \\`id\\``", "(x; (id))",
        "f() { id; }", "x 2>&1 | id", "x <<E | id\ny\nE", "x <<'E' && id\ny\nE", "export x=$(id)", "declare x=`id`",
        "x && ! id", "trap id EXIT", "eval id", "eval 'x;' id", "bash -c id", "sh -c 'x; id'", "bash -ec 'x $(id)' y",
        "echo {a,$(id)}", "x $(# )\nid)", "x 'y' | while read z; do id; done", "coproc_ || id",
        "select x in y; do id; done", "for ((i=0; i<3; i++)); do id; done", 'x "$(y "$(id)")"',
        "x $(y <<E\nz\nE\nid\n)", "x $'a' \"$(id)\"", "sh -c \"sh -c 'sh -c id'\"", "watch id",
        "time id", "time X=1 id",
        "if a; then id; fi", "case x in a|b) c;; (d) id;; esac", "function g { id; }", "h () (id)", "((a); id)",
        "case x in a) case y in b) c;; esac; id;; esac", "{ id; }", "a & id", "coproc id", "[[ a && b ]]; id",
        "env -i -u X Y=1 Z= id", "env -S 'id b' c", "nice -n 5 id", "nice -15 id", "ionice -c 3 id", "nohup id",
        "timeout -k 1 -s KILL 5s id", "timeout --signal=KILL 5 id", "xargs -0 -n 1 -P4 id b", "xargs -I X id X",
        "command -p id", "builtin id", "exec -a x id", "setsid -f id", "stdbuf -oL id", "busybox id b",
        "flock -n /l id",
        "strace -f -o x id", "find . -name x -exec id -b {} ';'", "/usr/bin/env nice nohup timeout 1 id",
        "flock x -c id", "find . -exec a ';' -ok id +", "xargs sh -c 'a; id'",
    ],
)  # fmt: skip
def test_a_command_is_found_wherever_it_hides(text: str) -> None:
    assert any(command.words[0].text == "id" for command in parse_text(text).commands)


@each_row(
    "text",
    [
        "for i in id; do a; done", "case id in id) a;; b|id) c;; esac", "x=(id)",
        "id() { a; }", "function id { a; }",
        "[[ id == x || id ]]", "((a; id))", "a <<E\nid\nE", "a ${x:-id}", "a $((b | id))",
        "! a id", "if a; then b id; fi",
        "a & # id\nb", "timeout 5 a id", "env X=1 a id", "find . -name id -exec a id {} +", "command -v id",
        "a <<-E\n\tid\n\tE\nb",
        "sh -c 'a id' id", "x=`a id`", "a `b` id", "a @(b|id)",
    ],
)  # fmt: skip
def test_a_word_that_is_no_command_is_not_taken_for_one(text: str) -> None:
    assert all(command.words[0].text != "id" for command in opaque(text).commands)


def test_the_files_of_an_opaque_text_are_found() -> None:
    text = "(a) > 'f g'; while a; do b; done < f; x $(a >> g); sh -c 'a 2> h'; a <> i; a >& j; a &> $k"

    found = [(redirect.target.text, redirect.writes) for redirect in opaque(text).redirects]

    expected = [("f g", True), ("f", False), ("g", True), ("i", True), ("j", True), (None, True), ("h", True)]
    assert found == expected


@each_row(
    ("word", "value"),
    [
        (r"$'a\x69\144\u0062'", "aidb"), (r"$'\x7f'", "\x7f"), (r"$'\n\'\\'", "\n'\\"), (r"$'id\0x'", None),
        (r"$'id\x0'", None), (r"$'id\u0000x'", None), (r"$'\x80'", None), (r"$'\cx'", None), (r"$'\x80\x69'", None),
    ],
)  # fmt: skip
def test_an_escape_in_an_opaque_text_has_its_value_unless_bash_alone_knows_it(word: str, value: str | None) -> None:
    """A word with a NUL ends there for bash: taken whole it would be another command than the denied one."""
    assert words(opaque(word).commands) == [[value]]


def test_an_argv_is_one_command_of_literal_words() -> None:
    reading = parse_words(["echo", "a b", "$(id)", "*", ";"])

    assert isinstance(reading, Commands)
    assert words(reading.commands) == [["echo", "a b", "$(id)", "*", ";"]]
    assert reading.text == "echo 'a b' '$(id)' '*' ';'"


def test_the_commands_that_a_shell_in_an_argv_runs_are_found() -> None:
    reading = parse_words(["env", "bash", "-c", "a; b"])

    assert isinstance(reading, Opaque)
    assert words(reading.commands) == [["env", "bash", "-c", "a; b"], ["bash", "-c", "a; b"], ["a"], ["b"]]


@pytest.mark.parametrize("argv", [[], [""], ["", "b"]])
def test_an_argv_without_a_program_is_opaque(argv: list[str]) -> None:
    assert isinstance(parse_words(argv), Opaque)


def test_a_pipe_says_whose_output_a_command_reads() -> None:
    commands = understood("curl x | tee f |\n sh2; a").commands

    assert [command.input for command in commands] == [None, "curl", "tee", None]


HALF = "b" * (MAX_LENGTH // 2)


@pytest.mark.parametrize(
    "text", ["a " + "b" * MAX_LENGTH, "a " * 10_001, "$(" * 10_001, "env " * 40 + "a", "eval " * 4 + HALF]
)
def test_a_text_beyond_the_bounds_is_opaque_and_not_whole(text: str) -> None:
    assert not opaque(text).complete


def test_a_text_within_the_bounds_is_read() -> None:
    assert understood("a " + "b" * (MAX_LENGTH - 2))
    assert opaque("$(" * 3000 + ")" * 3000).complete
    assert opaque("eval " * 2 + HALF).complete
    assert opaque("nice --zz " * 20 + "a").complete


def test_an_error_of_the_reader_makes_a_text_opaque_and_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scanner, "run", lambda scanner: 1 / 0)

    reading = opaque("git status")

    assert (reading.construct, reading.complete) == (FAILED, False)


@given(st.one_of(st.text(), st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=2))).map("".join)))
def test_no_text_raises(text: str) -> None:
    reading = parse_text(text)

    assert reading.text == text
    assert all(isinstance(redirect, Redirect) for redirect in reading.redirects)
    assert isinstance(reading, Commands) or reading.construct


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3))))
def test_no_argv_raises(argv: list[str]) -> None:
    assert parse_words(argv)


@pytest.mark.parametrize(
    "piece",
    [
        "(", "$(", '"$(', "`", "\\`", "{ ", "{", "{a,", "${x:-", "${x[", "x=(", "[a]", "[a] ", "a;", "a|", "a&&",
        "a<<E\n", "<<'E'\n", "if ", "[[ ", "((", "((a(b)", "$((", "eval ", "env ", "sh -c ", "nice --zz ",
        "find -exec ", "! ",
        "x)", "a\n", "f()", "'", '"', "$'", "\\", " \\\n", "<", ">a ", "1>", "$", "*", "~", "=~", "é", "case x in ",
        "$(a) ", "`a` ", "a`b` ", "#", "time ", "time -p ",
    ],
)  # fmt: skip
def test_no_text_takes_long(piece: str) -> None:
    """Each would nest ten thousand deep, or be gone over once for each of its characters: that takes minutes."""
    begun = time.process_time()

    parse_text(piece * (MAX_LENGTH // len(piece.encode())))

    assert time.process_time() - begun < 60
