"""That a page that doesn't hold is found: the checks, tried on pages that lie."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import Block, blocks_of
from tests.docs.compare import missing, same
from tests.docs.visit import CHECKS, Visit, commands_in


@pytest.fixture
def visit() -> Iterator[Visit]:
    visit = Visit()
    yield visit
    visit.close()


def block(language: str, text: str) -> Block:
    return Block(blocks.ROOT / "README.md", 1, language, text)


def page(directory: Path, text: str) -> Path:
    path = directory / "page.md"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("text", "$ agentos ps\n"),
        ("json", '{"a": 1,}\n'),
        ("bash", "false\ntrue\n"),
        ("bash", "make no-such-target\n"),
        ("python", "assert False\n"),
        ("python", "# broken.py\ndef\n"),
        ("toml", "[supervisor]\nintensty = 3\n"),
        ("toml", "# wrong.toml\n[supervisor]\nintensity = 3\n"),
        ("ini", "[Service]\nExecStart=/usr/bin/agentos run --daemon\n"),
        ("console", "$ echo three\nfour\n"),
        ("console", "$ echo three\n"),
        ("console", "$ echo out; echo err >&2\nout\nerr\n"),
        ("console", "$ agentos no-such-command\n"),
    ],
)
def test_a_block_that_does_not_hold_fails(visit: Visit, language: str, text: str) -> None:
    with pytest.raises((AssertionError, SyntaxError, ValueError)):
        visit.do(block(language, text))


def test_stdout_and_stderr_of_one_command_are_not_promised_in_any_order(visit: Visit) -> None:
    for text in ("$ echo out\nout\n", "$ echo err >&2\nerr\n", "$ (echo out; echo err >&2) 2>&1\nout\nerr\n"):
        visit.do(block("console", text))

    with pytest.raises(AssertionError, match="writes to stdout and stderr, whose order nothing promises"):
        visit.do(block("console", "$ echo out; echo err >&2\n...\n"))


def test_a_language_without_a_check_can_not_be_done(visit: Visit) -> None:
    with pytest.raises(KeyError):
        visit.do(block("ruby", "puts 1\n"))


def test_every_check_has_one_language() -> None:
    assert len(set(CHECKS.values())) == len(CHECKS)


@pytest.mark.parametrize(
    "text", ["~~~\nx\n~~~\n", "  ```text\n  x\n  ```\n", "```\nx\n```\n", "```text\nx\n", "````text\n"]
)
def test_a_fence_that_is_not_understood_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(AssertionError):
        list(blocks_of(page(tmp_path, text)))


def test_blocks_come_with_language_line_and_file(tmp_path: Path) -> None:
    [first, second] = blocks_of(page(tmp_path, "a\n```python\n# a.py\n1\n```\n\n```text\nx\n```\n"))

    assert (first.language, first.line, first.text, first.file) == ("python", 2, "# a.py\n1\n", "a.py")
    assert (second.language, second.line, second.file) == ("text", 7, None)


def test_what_differs_from_run_to_run_is_not_compared() -> None:
    shown = ["12:00:01 stdout | #3 says Ada", "w is running (id 8, pid 4002)", "1  a  44  running  0  8s"]
    printed = ["09:10:11 stdout | #77 says Ada", "w is running (id 12, pid 7)", "12  a 4711   running  0  1m02s"]

    assert same(shown, printed)


@pytest.mark.parametrize("printed", [["1 a 44 running 1 8s"], ["1 b 44 running 0 8s"], ["1 a - running 0 8s"], []])
def test_what_matters_is_compared(printed: list[str]) -> None:
    assert not same(["1 a 44 running 0 8s"], printed)


def test_dots_stand_for_any_lines_or_any_part_of_one() -> None:
    assert same(["a", "...", "z ... z"], ["a", "b", "c", "z y z"])
    assert same(["...", "z"], ["z"])
    assert not same(["a", "...", "z"], ["a", "b"])


def test_lines_of_a_kernel_may_come_in_any_order_but_each_must_come() -> None:
    assert missing(["a", "b", "b"], ["b", "a", "c", "b"]) == []
    assert missing(["a", "b", "b"], ["b", "a", "c"]) == ["b"]


def test_a_command_has_its_continuation_and_its_output() -> None:
    text = "$ cat <<X\n> one\n> X\none\n$ true\n"

    assert list(commands_in(text)) == [("cat <<X\none\nX", ["one"]), ("true", [])]
