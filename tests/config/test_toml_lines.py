import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.config.toml_lines import Keys, find_lines
from tests.support.runs.rows import each_row

TEXT = '''\
# a comment
top = 1

[kernel]
log_level = "info"   # another
text = """
[kernel]
socket = "not this one"
"""
socket = "this one"

[[children]]
name = "a"
limits = { memory = 1, deep = { x = 2 } }
list = [
  { name = "x" },
  { name = "y" },
]

[kernel.more]
a.b.c = 1

[[children]]
name = "b"
[children.env]
A = "1"
'''


@each_row(
    ("keys", "line"),
    [
        (("top",), 2),
        (("kernel",), 4),
        (("kernel", "log_level"), 5),
        (("kernel", "text"), 6),
        (("kernel", "socket"), 10),
        (("kernel", "missing"), 4),
        (("children", 0), 12),
        (("children", 0, "name"), 13),
        (("children", 0, "limits", "deep", "x"), 14),
        (("children", 0, "limits", "deep", "missing", "far"), 14),
        (("children", 0, "list", 1, "name"), 15),
        (("kernel", "more", "a", "b", "c"), 21),
        (("children", 1), 23),
        (("children", 1, "restart"), 23),
        (("children", 1, "env"), 25),
        (("children", 1, "env", "A"), 26),
        (("children", 2), 12),
        (("top", "x"), 2),
    ],
)
@each_row("end", ["\n", "\r\n"])
def test_a_value_is_found_on_the_line_that_says_it(keys: Keys, line: int, end: str) -> None:
    assert find_lines(TEXT.replace("\n", end), [keys]) == {keys: line}


def test_what_is_nowhere_has_no_line() -> None:
    assert find_lines(TEXT, [("nothing",), ()]) == {}


def test_many_are_found_together_as_each_alone() -> None:
    wanted: list[Keys] = [("top",), ("kernel", "socket"), ("children", 1, "env", "A"), ("children", 0, "list")]

    assert find_lines(TEXT, wanted) == {keys: find_lines(TEXT, [keys])[keys] for keys in wanted}


@given(st.lists(st.sampled_from(["\n", "# [x]\n", '"""\n"""\n', "1\n", "[\n1,\n\n]\n"]), min_size=1, max_size=30))
def test_every_statement_is_found_where_it_begins(values: list[str]) -> None:
    text, begins = "", {}
    for number, value in enumerate(values):
        if value.strip() and not value.startswith("#"):
            begins[(f"k{number}",)] = text.count("\n") + 1
            text += f"k{number} = "
        text += value
    tomllib.loads(text)

    assert find_lines(text, begins) == begins


def test_a_value_of_thousands_of_lines_does_not_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.config.toml_lines.MAX_PARSED_CHARACTERS", 1 << 18)
    text = "a = 1\nb = [\n" + "1,\n" * 20_000 + "]\nc = 1\n"

    assert find_lines(text, [("a",), ("b",), ("c",)]) == {("a",): 1}
