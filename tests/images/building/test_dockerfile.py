"""The parser of Dockerfiles: lines, heredocs, words and variables, and what is refused with its line."""

import tempfile
from pathlib import Path

import pytest

from agentos.images.building.dockerfile import (
    MAX_BYTES,
    MAX_INSTRUCTIONS,
    MAX_TOLD,
    BadDockerfile,
    Instruction,
    expand,
    expand_text,
    parse,
    read_pairs,
    read_text,
    split_words,
)
from agentos.images.building.plan import plan_build
from agentos.images.store import Images
from agentos.services.snapshots import layers
from tests.support.runs.rows import each_row

VARIABLES = {"A": "one", "EMPTY": "", "P": "/opt"}
ONE = Instruction(7, "COPY", "x")


def rests(text: str) -> list[tuple[int, str, str]]:
    return [(one.line, one.keyword, one.rest) for stage in parse(text).stages for one in stage.steps]


def test_lines_are_continued_over_comments_and_empty_lines() -> None:
    text = "# escape=\\\n\n#c\nFROM a\nRUN one \\\n  # told\n\n  two \\\n  three\nrun four\n"
    assert rests(text) == [(5, "RUN", "one   two   three"), (10, "RUN", "four")]


def test_tabs_stay_behind_the_one_after_a_keyword() -> None:
    assert rests("FROM a\nRUN\techo 'a\tb'\n") == [(2, "RUN", "echo 'a\tb'")]


def test_a_directive_changes_the_escape_character() -> None:
    assert rests("#escape=`\nFROM a\nRUN a `\nb\\\nCMD c\n") == [(3, "RUN", "a b\\"), (5, "CMD", "c")]


def test_what_windows_writes_before_the_first_line_and_at_the_end_of_each_is_left_out() -> None:
    assert rests("\ufeff#escape=`\r\nFROM a\r\nRUN a `\r\nb\r\n") == [(3, "RUN", "a b")]


def test_heredocs_hold_lines_until_their_word() -> None:
    text = "FROM a\nRUN <<EOF\n# kept\nFROM b\nEOF\nCOPY <<-'ONE' <<TWO /x/\n\tone $A\n\tONE\ntwo\nTWO\n"
    text += "RUN cat <<<x \"<<y\" '<<z a'\n"
    run, copy, last = parse(text).stages[0].steps
    assert [(each.name, each.text, each.expand) for each in run.heredocs] == [("EOF", "# kept\nFROM b\n", True)]
    assert [(each.name, each.text, each.expand) for each in copy.heredocs] == [
        ("ONE", "one $A\n", False),
        ("TWO", "two\n", True),
    ]
    assert (last.line, last.heredocs) == (11, ())


def test_stages_flags_and_both_forms_are_read() -> None:
    file = parse(
        'ARG V=1\nFROM --platform=x a:$V AS One\nRUN ["a", "b c"]\nFROM scratch\nCOPY --from=one --chmod=755 a b\n'
    )
    assert [one.rest for one in file.arguments] == ["V=1"]
    assert [(stage.base, stage.name) for stage in file.stages] == [("a:$V", "one"), ("scratch", "")]
    assert file.stages[0].begin.flags == {"platform": "x"}
    assert file.stages[0].steps[0].words == ["a", "b c"]
    assert file.stages[1].steps[0].flags == {"from": "one", "chmod": "755"}
    assert Instruction(1, "RUN", "[ -e x ]").words is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1: it has no FROM"),
        ("RUN x\nFROM a", "line 1: RUN: expected FROM first: only ARG may stand before it"),
        ("FROM a\n\nONBUILD RUN x", "line 3: ONBUILD isn't supported: expected ADD, ARG, CMD"),
        ("FROM a\nRUN --mount=type=cache x", "line 2: RUN: --mount isn't supported"),
        ("FROM a\nCOPY --parents a b", "line 2: COPY: --parents isn't supported"),
        ("FROM a\nRUN", "line 2: RUN: it says nothing"),
        ("FROM a\nRUN <<X\ny\n", "line 2: the heredoc <<X has no end"),
        ("FROM a b", "line 1: FROM: expected IMAGE or IMAGE AS NAME, got 'a b'"),
        ("FROM a AS x\nFROM b AS X", "line 2: FROM: a stage before it is called x, too"),
        ("# escape=x\nFROM a", "line 1: escape: expected"),
        ("FROM a\nRUN x\0", "line 1: it has a NUL"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, expected: str) -> None:
    with pytest.raises(BadDockerfile) as error:
        parse(text)
    assert str(error.value).startswith(expected)


def test_a_file_that_is_not_utf_8_or_too_long_is_refused(tmp_path: Path) -> None:
    file, text = tmp_path / "Dockerfile.x", "FROM a\n"
    file.write_bytes(b"FROM a\n\nRUN \xff\n")
    with pytest.raises(BadDockerfile, match="line 3: it isn't UTF-8"):
        read_text(str(tmp_path), str(file))

    file.write_text(text + "#" * (MAX_BYTES - len(text)))
    assert parse(read_text(str(tmp_path), str(file))).stages[0].base == "a"
    file.write_text(text + "#" * (MAX_BYTES - len(text) + 1))
    with pytest.raises(BadDockerfile, match="line 1: it has a NUL, or more than"):
        parse(read_text(str(tmp_path), str(file)))


def test_a_dockerfile_has_as_many_instructions_as_allowed() -> None:
    text = "FROM a\n" + "USER a\n" * (MAX_INSTRUCTIONS - 1)
    assert len(rests(text)) == MAX_INSTRUCTIONS - 1
    with pytest.raises(BadDockerfile, match=f"^line {MAX_INSTRUCTIONS + 1}: USER: a Dockerfile may have"):
        parse(f"{text}USER a\n")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("$A/${A}x", "one/onex"),
        ("'$A' \"$A\" \\$A", "$A one $A"),
        ("${N:-a$A}${EMPTY:-b}${EMPTY-c}${A:+d}${N:+e}${N-f}", "aonebdf"),
        ('"a\\"b\\c"', 'a"b\\c'),
        ("a$ b", "a$ b"),
        ("$N", ""),
    ],
)
def test_words_are_expanded_as_docker_does(word: str, expected: str) -> None:
    assert expand(ONE, word, VARIABLES, "\\") == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("${A%x}", "line 7: COPY: '${A%x}': expected $NAME"),
        ("${N:?is missing}", "line 7: COPY: N isn't set: is missing"),
        ("'a", "line 7: COPY: \"'a\" has no closing '"),
        ("${" * 2000, "line 7: COPY"),
    ],
)
def test_words_that_cannot_be_expanded_are_refused(word: str, expected: str) -> None:
    with pytest.raises(BadDockerfile) as error:
        expand(ONE, word, VARIABLES, "\\")
    assert str(error.value).startswith(expected)


def test_a_first_line_of_any_length_is_read_in_time() -> None:
    """The limit of a test ends one that takes the square of it."""
    assert parse(f"# a=b{' ' * 1_000_000}c\nFROM a\n").stages[0].base == "a"


NINES = "9" * 5000


@each_row(
    "text",
    [
        f"FROM {NINES}",
        f"FROM scratch\nCOPY --from={NINES} a b",
        f"FROM scratch AS {'a' * 10_000} x",
        f"FROM scratch\nENV A=1 {NINES}",
        f"FROM scratch\nRUN x\nENV A='{NINES}",
    ],
)
def test_a_mistake_in_a_long_word_is_told_in_a_short_line(text: str) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-") as place, pytest.raises(BadDockerfile) as error:
        plan_build(parse(text), Images(Path(place)), {}, "", root=True)

    assert len(str(error.value)) < 2 * MAX_TOLD


@each_row("target", [NINES, "9" * 19, "1", "\u0669"])
def test_a_target_of_any_number_is_looked_for(target: str) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-") as place, pytest.raises(BadDockerfile, match="--target"):
        plan_build(parse("FROM scratch"), Images(Path(place)), {}, target, root=True)


def test_variables_that_double_each_other_come_to_an_end() -> None:
    variables, ones = {"A": "x" * 1000}, parse("FROM a\n" + "ENV A=$A$A\n" * 40).stages[0].steps
    with pytest.raises(BadDockerfile, match=r"^line 1[0-9]: ENV: with A the variables of all instructions are longer"):
        for one in ones:
            variables |= read_pairs(one, variables, "\\")


@pytest.mark.parametrize("word", ["a\\u0000b", "a\\ud800", "\\udfff"])
def test_words_that_no_program_can_be_given_are_refused(word: str) -> None:
    [one] = parse(f'FROM a\nCMD ["x", "{word}"]\n').stages[0].steps
    with pytest.raises(BadDockerfile, match=r"^line 2: CMD: .a?"):
        assert one.words


def test_the_text_of_a_heredoc_keeps_its_quotes() -> None:
    assert expand_text(ONE, "'$A' \"${A}\" \\$A $(x) $1", VARIABLES, "\\") == "'one' \"one\" $A $(x) $1"


def test_pairs_are_split_at_spaces_outside_of_quotes() -> None:
    one = Instruction(1, "ENV", "a=\"b c\" d=e\\ f g=$A h=''")
    assert read_pairs(one, VARIABLES, "\\") == {"a": "b c", "d": "e f", "g": "one", "h": ""}
    assert read_pairs(Instruction(1, "ENV", 'a b "c"'), VARIABLES, "\\") == {"a": "b c"}
    assert split_words(" a 'b c'd ", "\\") == ["a", "'b c'd"]


def test_a_directory_has_as_long_a_path_as_linux_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MAX_PATH", len("/é/é".encode()))
    plan_build(parse("FROM scratch\nWORKDIR /\nWORKDIR é/é\n"), Images(tmp_path), {}, "", root=True)
    with pytest.raises(BadDockerfile, match=r"^line 3: WORKDIR: /é/éd\.\.\.: longer than Linux takes"):
        plan_build(parse("FROM scratch\nWORKDIR /\nWORKDIR é/éd\n"), Images(tmp_path), {}, "", root=True)
