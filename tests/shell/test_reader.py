"""What a command would run, where it reads and writes, and what is refused because nobody could tell."""

import pytest

from agentos.permissions.shell import MAX_LENGTH, NotUnderstood, Script, parse


def commands(script: Script) -> list[list[str | None]]:
    return [[word.text for word in simple.words] for simple in script.commands]


def files(script: Script) -> list[tuple[str | None, bool]]:
    return [(redirect.target.text, redirect.writes) for redirect in script.redirects]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("git status", [["git", "status"]]),
        ("a; b\nc & d && e || f | g |& h", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"], ["g"], ["h"]]),
        ("(a; b) && { c; } && ! d", [["a"], ["b"], ["c"], ["d"]]),
        ("if a; then b; elif c; then d; else e; fi", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("while a; do b; done; until c; do d; done", [["a"], ["b"], ["c"], ["d"]]),
        ("for i in x y; do a; done; for i; do b; done", [["a"], ["b"]]),
        ("case x in a|b) c;; (d) e;; *) f; esac", [["c"], ["e"], ["f"]]),
        ("f() { a; }; function g { b; }; h () (c); f", [["a"], ["b"], ["c"], ["f"]]),
        ("time a; time -p b", [["time", "a"], ["a"], ["time", "-p", "b"], ["b"]]),
        ("a # b\nc", [["a"], ["c"]]),
        ("a \\\n b", [["a", "b"]]),
        ("[ -f x ] && a", [["[", "-f", "x", "]"], ["a"]]),
        ("export A=1; unset B; declare -x C", [["export", "A=1"], ["unset", "B"], ["declare", "-x", "C"]]),
        ("A=1 B=2", []),
        ("A=1 b", [["b"]]),
        ("", []),
    ],
)  # fmt: skip
def test_every_simple_command_of_a_text_is_found(text: str, found: list[list[str]]) -> None:
    assert commands(parse(text)) == found
    assert parse(text).opaque == ()


@pytest.mark.parametrize(
    "text",
    [
        "x $(id)", "x `id`", 'x "$(id)"', 'x "a `id` b"', "x <(id)", "x > >(id)", "x=$(id)", "x=(a $(id))",
        "x ${y:-$(id)}", 'x "${y:-$(id)}"',
        "x ${y#`id`}", "x ${y/$(id)/z}", "x <<E\n$(id)\nE", "x <<E\n`id`\nE\n", "x <<E\n${y:-$(id)}\nE",
        "x <<-E\n\t$(id)\n\tE", "x < $(id)", "x > $(id)",
        "x <<< $(id)", "x $((1 + $(id)))", "((x = $(id)))", "x[$(id)]=1", "x ${y[$(id)]}", "[[ $(id) ]]",
        "for x in $(id); do y; done", "case $(id) in x) y;; esac",
        "case x in $(id)) y;; esac", "x $(y $(z $(id)))", "x `y \\`id\\``", "(x; (id))", "f() { id; }", "x 2>&1 | id",
        "x <<E | id\ny\nE", "x <<'E' && id\ny\nE",
        "export x=$(id)", "declare x=`id`", "x && ! id", "trap id EXIT", "eval id", "eval 'x;' id", "bash -c id",
        "sh -c 'x; id'", "bash -ec 'x $(id)' y",
        "echo {a,$(id)}", "x $(# )\nid)", "x 'y' | while read z; do id; done", "coproc_ || id",
        "select x in y; do id; done", "for ((i=0; i<3; i++)); do id; done",
        "x \"$(y \"$(id)\")\"", "x $(y <<E\nz\nE\nid\n)", "x $'a' \"$(id)\"", "sh -c \"sh -c 'sh -c id'\"",
        "su -c id", "watch id",
    ],
)  # fmt: skip
def test_a_command_is_found_wherever_it_hides(text: str) -> None:
    assert ["id"] in commands(parse(text))


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        ("env a b", ["a", "b"]),
        ("env -i -u X Y=1 Z= a b", ["a", "b"]),
        ("env -S 'a b' c", ["a", "b", "c"]),
        ("nice a", ["a"]),
        ("nice -n 5 a", ["a"]),
        ("nice -15 a", ["a"]),
        ("ionice -c 3 a", ["a"]),
        ("nohup a", ["a"]),
        ("timeout -k 1 -s KILL 5s a", ["a"]),
        ("timeout --signal=KILL 5 a", ["a"]),
        ("xargs -0 -n 1 -P4 a b", ["a", "b", None]),
        ("xargs -I X a X b", ["a", None, "b"]),
        ("command -p a", ["a"]),
        ("builtin echo", ["echo"]),
        ("exec -a x a", ["a"]),
        ("setsid -f a", ["a"]),
        ("stdbuf -oL a", ["a"]),
        ("sudo -n -u root a -u b", ["a", "-u", "b"]),
        ("doas -u x a", ["a"]),
        ("busybox a b", ["a", "b"]),
        ("flock -n /l a", ["a"]),
        ("strace -f -o x a", ["a"]),
        ("find . -name x -exec a -b {} ;", ["a", "-b", None]),
        ("/usr/bin/env nice nohup timeout 1 a", ["a"]),
    ],
)
def test_the_command_behind_a_wrapper_is_found(text: str, wrapped: list[str | None]) -> None:
    script = parse(text.split(" ") if "'" not in text else text)

    assert wrapped in commands(script)
    assert script.opaque == ()
    assert commands(script)[0][0] == text.split()[0], "the wrapper too"


@pytest.mark.parametrize("text", ["command -v a", "sudo -l", "env", "xargs", "exec 2>/dev/null", "find . -type f"])
def test_a_wrapper_that_runs_nothing_is_a_command_like_any_other(text: str) -> None:
    assert len(commands(parse(text))) == 1


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("'a b'", "a b"), ('"a b"', "a b"), ("a\\ b", "a b"), ("r''m", "rm"), ('"r"m', "rm"), ("\\rm", "rm"),
        ("''", ""), ("'a'\\''b'", "a'b"),
        ('"a\\$b\\`c\\"d\\\\e\\f"', 'a$b`c"d\\e\\f'), ("$'a\\x62\\n\\'\\101\\t\\u0041\\e'", "ab\n'A\tA\x1b"),
        ('"$"', "$"), ("a$", "a$"), ("HEAD~1", "HEAD~1"),
        ("stash@{0}", "stash@{0}"), ("{}", "{}"), ("a#b", "a#b"), ("é", "é"), ("\\é", "é"), ("'\u3000'", "\u3000"),
        ('"a\nb"', "a\nb"), ('"a\\\nb"', "ab"),
        ("[", "["), ("a=b", "a=b"), ("%x", "%x"), ("^", "^"), ("x,y", "x,y"), ("!", "!"), ("'*'", "*"), ("\\*", "*"),
        ('"~"', "~"), ("'{a,b}'", "{a,b}"),
    ],
)  # fmt: skip
def test_quotes_are_removed_as_bash_removes_them(word: str, value: str) -> None:
    assert commands(parse(f"x {word}")) == [["x", value]]


@pytest.mark.parametrize(
    "word",
    [
        "$x", "${x}", '"$x"', "a$x", "$(y)", "`y`", "<(y)", "*", "a?", "[ab]", "~", "~x", "~/x", "x=~", "x:~/y",
        "{a,b}", "{1..3}", "a{b,c}d",
        "$1", "$@", '"$@"', "$$", "$'\\0'", "$'\\xff'", "$((1+1))", '"${x:-y}"', "${x[0]}",
    ],
)  # fmt: skip
def test_a_word_that_only_the_shell_will_know_has_no_text(word: str) -> None:
    (simple, *_) = parse(f"x {word}").commands

    assert simple.words[1].text is None
    assert simple.words[1].source == word


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a > f", [("f", True)]), ("a >> f", [("f", True)]), ("a >| f", [("f", True)]), ("a &> f", [("f", True)]),
        ("a &>> f", [("f", True)]),
        ("a < f", [("f", False)]), ("a 2> f", [("f", True)]), ("a 2>&1 >&2 <&3", []),
        ("a >&- 2>&-", []), ("a <<< f", []),
        ("a <<E\nE", []), ("a < <(b)", []), ("a > >(b) 2> f", [("f", True)]), ("a < <(b)c", [(None, False)]),
        ("> f", [("f", True)]), ("a > f b < g", [("f", True), ("g", False)]),
        ("{ a; } > f", [("f", True)]), ("(a) > 'f g'", [("f g", True)]),
        ("while a; do b; done < f", [("f", False)]), ("x $(< f)", [("f", False)]), ("sh -c 'a > f'", [("f", True)]),
        ("x $(a > f)", [("f", True)]),
    ],
)  # fmt: skip
def test_redirects_say_which_file_and_whether_it_is_written(text: str, found: list[tuple[str, bool]]) -> None:
    assert files(parse(text)) == found


def test_a_word_behind_a_redirect_is_an_argument() -> None:
    assert commands(parse("rm > log -rf x")) == [["rm", "-rf", "x"]]


def test_the_names_that_are_set_in_front_of_a_command_are_told() -> None:
    (simple,) = parse("A=1 B+=$x c").commands

    assert simple.assignments == ("A", "B")


def test_an_argv_is_one_command_of_literal_words() -> None:
    script = parse(["echo", "a b", "$(id)", "*", ";"])

    assert commands(script) == [["echo", "a b", "$(id)", "*", ";"]]
    assert str(script) == "echo 'a b' '$(id)' '*' ';'"
    assert script.opaque == ()


def test_what_a_shell_in_an_argv_runs_is_found() -> None:
    assert commands(parse(["env", "bash", "-c", "a; b"])) == [
        ["env", "bash", "-c", "a; b"],
        ["bash", "-c", "a; b"],
        ["a"],
        ["b"],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a\0b", "a\rb", "a \x0c b", "a '\x01'", "a\u00a0b", "a\u3000b", "a \u2028 b", "a\x85b", "a \ud800",
        "ec\\\nho x", "a &\\\n& b", "a 'b", 'a "b', "a `b",
        "a $(b", "a ${b", "a &&", "a |", "(a", "a)", "{ a", "if a", "if a; then b", "for x in", "a <<E", "a <<E\nb",
        "a <<$x\nE\n$x", "a <<'E F'\nE F", "a <<E\\\nF\nEF",
        "a <<E <<F\nE\nF", "a <<E\nx\\\nE\nE", "coproc a", "time { a; }", "! ! a", "{a}>f", "$[1+1]", "a $[x]",
        "a @(b|c)", "a[1 + 2]=3", "a ${x:-<(id)}", 'a "${x:-\'y\'}"',
        "a >& f", "a >&'f'", "a 1>&f", "a >&$x", "a <&f", 'a <&"$x"', "a >&1-", "a >&2'x'", "time X=1 a",
        "${ id; }", "[ a < b ]", "[[ a", "a ]] | [[ b", "((a) ; b)", "a & & b", "a () b", "function", "a\\",
    ],
)  # fmt: skip
def test_what_is_broken_or_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(NotUnderstood):
        parse(text)


@pytest.mark.parametrize("argv", [[], [""], ["a", "b\0"]])
def test_an_argv_that_no_program_can_be_started_with_is_refused(argv: list[str]) -> None:
    with pytest.raises(NotUnderstood):
        parse(argv)


def test_the_refusal_says_what_and_where() -> None:
    with pytest.raises(NotUnderstood, match=r"line 2, column 3: a quote that is not closed"):
        parse("a\nb 'c")


def test_a_text_longer_than_an_argument_may_be_is_refused() -> None:
    assert parse("a " + "b" * (MAX_LENGTH - 2))
    with pytest.raises(NotUnderstood, match="bytes"):
        parse("a " + "b" * (MAX_LENGTH - 1))


@pytest.mark.parametrize(
    "piece",
    [
        "(", "$(", '"$(', "`", "{ ", "${x:-", "${x[", "x=(", "[a]", "[a] ", "a;", "a|", "a&&", "a<<E\n", "if ", "[[ ",
        "((", "$((", "eval ", "env ", "! ", "x)",
        "a\n", "f()", "'", '"', "\\", " \\\n", "<", ">a ", "$", "*", "{", "{a,", "é", "<<E\n", "case x in ", "$(a) ",
        "`a` ", "a`b` ", "#", "time ", "time -p ",
    ],
)  # fmt: skip
def test_no_text_takes_the_reader_down(piece: str) -> None:
    """Each would nest a hundred thousand deep, or be gone over once for each of its characters."""
    text = piece * (MAX_LENGTH // len(piece.encode()))

    try:
        assert len(parse(text).commands) <= 10_000
    except NotUnderstood as error:
        assert len(str(error)) < 200


def test_texts_within_texts_end_somewhere() -> None:
    with pytest.raises(NotUnderstood):
        parse(["env"] * 1000 + ["a"])
    with pytest.raises(NotUnderstood):
        parse("a " + "$(" * 100 + "b" + ")" * 100)
