"""What a person sees of a call: escaped, unambiguous, bounded, and nothing that passes for a line of the kernel's."""

import hashlib
import re
import tracemalloc
import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from agentos.kernel.ports import Right
from agentos.permissions.approval_text import (
    MAX_CHARS,
    MAX_LINE_CHARS,
    describe_append,
    describe_exec,
    describe_http,
    describe_message,
    describe_right,
    describe_write,
    escape,
)
from tests.support.rows import each_row

CONTROLS = "\x1b\x9b\n\r\t\x0b\x85\u2028\u2029\u202e\u2066\u2069\u200b\u200d\u200e\ufeff"
NASTY = CONTROLS + "\u3164\u2800\u0338\u0301\u20dd\ufe0f\\{u} "
TEXTS = st.text(st.one_of(st.characters(), st.sampled_from(NASTY)), max_size=40)
PIECES = st.lists(st.one_of(TEXTS, st.sampled_from(["a", "b", "\n", "\\u{1b}", "x" * 300])), max_size=30).map("".join)
ESCAPE = re.compile(r"\\u\{([0-9a-f]+)\}")
SIGNS = re.compile(
    r"WRITE |READ |SEND to |GET https://|[$>|+ -]|in |header |body[: ]|not ASCII: |the agent can change |"
    r"known only when it runs: |@@ -|\\ no line|… \d+ more |all of it: \d|now: |new: |a new file of |the same content|"
    r"\d+ bytes "
)


def nowhere(path: str) -> bool:
    return False


@given(TEXTS)
@example("\x1b[2J\x1b]52;c;aGk=\x07")
@example("a\u202eb\u2066c")
@example("\u0301" * 50)
@example("e" + "\u0301" * 50)
def test_an_escaped_text_is_one_line_of_visible_characters(text: str) -> None:
    shown = escape(text)

    assert shown.isprintable()
    assert "\n" not in shown
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Me", "Zl", "Zp") for char in shown)
    assert not any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in shown)
    assert not set(shown) & set("\u3164\u2800\u115f\u1160\uffa0\u034f\ufe0f\u0338\u200b\u00a0")
    assert not shown.startswith("\u0301")
    assert "\u0301\u0301\u0301" not in shown
    assert not shown.endswith(" ")


@given(TEXTS, st.booleans())
@example("\\u{1b}", True)
@example("\\\\u{1b}", True)
@example("\\\x1b", True)
def test_an_escaped_text_stands_for_one_text_only(text: str, ordered: bool) -> None:
    assert ESCAPE.sub(lambda found: chr(int(found[1], 16)), escape(text, ordered=ordered)) == text


def test_plain_commands_and_foreign_letters_stay_as_they_are() -> None:
    for text in (r"grep -E '\.py$' *.c | sed 's/\n/ /'", "Grüße, мир, 你好, हिन्दी", ""):
        assert escape(text) == text
    assert escape("שלום", ordered=False) == "שלום"


@given(PIECES)
def test_no_agent_begins_a_line_of_its_own_and_none_has_a_hidden_character(text: str) -> None:
    data = text.encode(errors="surrogatepass")
    for shown in (
        describe_write(text, b"a\nb\n", data),
        describe_write(text, None, data),
        describe_append(text, 7, data),
        describe_exec(text, text, nowhere),
        describe_exec([text or "x", text], "/", nowhere),
        describe_http(f"GET https://{escape(text)}", [(text, text)], data, text),
        describe_message("SEND to", text, text),
        describe_right(Right("read", text)),
    ):
        for line in shown.split("\n"):
            assert SIGNS.match(line) or line.startswith("without a shell"), line
            assert all(char.isprintable() and unicodedata.category(char) != "Me" for char in line)
        assert len(shown) <= 3 * MAX_CHARS


@given(PIECES, PIECES, st.integers(1, 200))
@example("a", "a\n", 1)
@example("a\n", "a\r\n", 1)
@example("a", "a ", 1)
@example("x" * 100 + "a", "x" * 100 + "b", 200)
def test_two_calls_never_look_the_same(one: str, other: str, times: int) -> None:
    if one == other:
        return
    one, other = "x\n" * times + one * times, "x\n" * times + other * times
    first, second = one.encode(errors="surrogatepass"), other.encode(errors="surrogatepass")

    assert describe_exec(one, "/", nowhere) != describe_exec(other, "/", nowhere)
    assert describe_write("/f", b"x\ny\n", first) != describe_write("/f", b"x\ny\n", second)
    assert describe_write("/f", None, first) != describe_write("/f", None, second)
    assert describe_append("/f", 3, first) != describe_append("/f", 3, second)
    assert describe_http("POST https://a.b/", [], first) != describe_http("POST https://a.b/", [], second)
    assert describe_message("SEND to", "a", one) != describe_message("SEND to", "a", other)


def test_what_is_cut_is_counted_and_known_by_its_digest() -> None:
    command = "echo " + "a" * (2 * MAX_CHARS)
    shown = describe_exec(command, "/", nowhere)

    assert f"… {len(command) - MAX_CHARS} more characters of this line are not shown" in shown
    assert f"all of it: {len(command)} bytes, sha256 {hashlib.sha256(command.encode()).hexdigest()}" in shown
    many = describe_write("/f", None, b"line\n" * 100_000)
    assert re.search(r"… \d{5} more lines are not shown, \d{6} characters in all\n", many)
    long = describe_write("/f", None, b"x" * 5000)
    assert f"… {5000 - MAX_LINE_CHARS} more characters of this line" in long


def test_a_write_shows_a_unified_diff_against_the_present_file() -> None:
    old = "".join(f"{number}\n" for number in range(1, 21))
    new = old.replace("7\n", "seven\n", 1).removesuffix("20\n") + "20"

    assert describe_write("/workspace/a", old.encode(), new.encode()).split("\n") == [
        "WRITE /workspace/a",
        f"{len(new)} bytes replace {len(old)}",
        "@@ -4,7 +4,7 @@",
        " 4",
        " 5",
        " 6",
        "-7",
        "+seven",
        " 8",
        " 9",
        " 10",
        "@@ -17,4 +17,4 @@",
        " 17",
        " 18",
        " 19",
        "-20",
        "+20",
        "\\ no line break at the end",
    ]


@given(st.lists(st.sampled_from("abc"), max_size=300), st.lists(st.sampled_from("abc"), max_size=300))
def test_a_diff_names_every_changed_line(old: list[str], new: list[str]) -> None:
    before, after = "".join(f"{line}\n" for line in old), "".join(f"{line}\n" for line in new)
    lines = describe_write("/f", before.encode(), after.encode()).split("\n")[2:]

    rebuilt, at = [], 0  # the new file, from the old one and the diff
    for line in lines:
        if line.startswith("@@"):
            start = int(re.findall(r"-(\d+)", line)[0]) - 1
            rebuilt += old[at:start]
            at = start
        elif line[0] in " -":
            assert old[at] == line[1:]
            at += 1
        if line[0] in " +":
            rebuilt.append(line[1:])
    assert rebuilt + old[at:] == new


def test_binary_content_is_known_by_size_and_digest() -> None:
    shown = describe_write("/f", b"\xff\x00", b"\xff\x01")

    assert f"now: 2 bytes, sha256 {hashlib.sha256(bytes([255, 0])).hexdigest()}" in shown
    assert f"new: 2 bytes, sha256 {hashlib.sha256(bytes([255, 1])).hexdigest()}, not text" in shown


@each_row(
    "command",
    [
        "python build.py",
        ["python", "build.py"],
        "bash -c 'cd src && python ./build.py'",
        "make CONFIG=build.py",
        "python --script=build.py",
        "cat < build.py",
        "$(cat build.py)",
        "for x in build.py; do . $x; done",
        "git -c core.pager=./build.py log",
        "python /workspace/tools/../build.py",
    ],
)
def test_words_that_name_files_which_the_agent_can_write_are_marked(command: str | list[str]) -> None:
    shown = describe_exec(command, "/workspace", lambda path: path == "/workspace/build.py")

    line = next(line for line in shown.split("\n") if line.startswith("the agent can change "))
    assert "build.py" in line
    assert line.endswith(" before it runs")
    assert "the agent can change" not in describe_exec(command, "/workspace", nowhere)


def test_a_long_command_hides_neither_its_directory_nor_the_marks() -> None:
    shown = describe_exec("python build.py " + "#" * (2 * MAX_CHARS), "/workspace", lambda path: path.endswith(".py"))

    assert "in /workspace" in shown.split("\n")
    assert "the agent can change build.py before it runs" in shown.split("\n")


def test_words_that_only_bash_knows_are_named() -> None:
    assert "known only when it runs: *.py, $X" in describe_exec("cat *.py $X", "/", nowhere).split("\n")


def test_characters_that_may_look_like_others_are_numbered_in_names() -> None:
    assert "not ASCII: U+0430" in describe_write("/etc/h\u0430sts", None, b"")
    assert "not ASCII: U+0430" in describe_right(Right("read", "/etc/h\u0430sts"))


def test_a_request_over_http_shows_the_query_the_headers_without_credentials_and_the_body() -> None:
    headers = [("X-Token", "t0ps3cret"), ("Authorization", "Bearer t0ps3cret"), ("X-Action", "delete\x1b[2J")]
    shown = describe_http("POST https://api.example.com/items", headers, b'{"a": 1}', "page=2")

    assert shown.split("\n") == [
        "POST https://api.example.com/items?page=2",
        "header X-Token: a credential of 9 characters",
        "header Authorization: a credential of 16 characters",
        "header X-Action: delete\\u{1b}[2J",
        "body of 8 bytes:",
        '| {"a": 1}',
    ]


def test_no_headers_hide_the_body() -> None:
    shown = describe_http("POST https://a.b/", [(f"X-{number}", "v" * 3000) for number in range(100)], b"the body")

    assert "| the body" in shown.split("\n")
    assert shown.count("\nheader X-") == 100


def test_a_content_of_many_lines_takes_no_more_memory_than_itself() -> None:
    """Its lines would take sixty times as much; the kernel holds such a content several times for each caller."""
    content = b"\n" * (8 << 20)
    tracemalloc.start()
    try:
        added = describe_append("/f", 3, content)
        sent = describe_http("POST https://a.b/", [], content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 5 * len(content)
    cut = len(content) - added.count("\n+")
    assert f"… {cut} more lines are not shown, {cut} characters in all" in added
    cut = len(content) + 1 - sent.count("\n|")
    assert f"… {cut} more lines are not shown, {cut} characters in all" in sent
