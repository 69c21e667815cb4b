"""Path patterns against a plain model of them, against git, and against each other."""

import fnmatch
import shutil
import subprocess
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.permissions.patterns.base import Names
from agentos.permissions.patterns.paths import PathPattern, match_any, parse_path_pattern, words
from tests.support.runs.rounds import rounds


def read(text: str) -> PathPattern:
    return parse_path_pattern(text, Names(home="/home/ada"))


SEGMENTS = st.sampled_from(
    ["a", "b", "*", "?", "a*", "*a", "*a*", "?b", "[ab]", "[!a]", "[^b]?", "a*b*", "**", "**", r"\a"]
)
NAMES = ("a", "b", "c", "ab", "ba", "aab", "abc", "cb")
PATHS = tuple(
    "/" + "/".join(names) for depth in (1, 2, 3, 4) for names in product(NAMES[: 8 if depth < 4 else 3], repeat=depth)
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    segments = draw(st.lists(SEGMENTS, min_size=1, max_size=4))
    body = "/".join(segments) + draw(st.sampled_from(["", "", "/"]))
    if len(segments) > 1 or draw(st.booleans()):
        return draw(st.sampled_from(["/", "**/"])) + body
    return body


def fits(segments: Sequence[str], names: Sequence[str]) -> bool:
    """Whether the segments of a pattern match all of a path's names: recursive, slow, and plain."""
    if not segments:
        return not names
    head, rest = segments[0], segments[1:]
    if head == "**":
        return any(fits(rest, names[skipped:]) for skipped in range(len(names) + 1))
    shell = head.replace("[^", "[!").replace("\\", "")
    return bool(names) and fnmatch.fnmatchcase(names[0], shell) and fits(rest, names[1:])


def model(text: str, path: str) -> bool:
    """What a grant means."""
    if "/" not in text[:-1]:
        text = "**/" + text
    segments = text.strip("/").split("/")
    if segments[-1] == "**":
        segments.append("*")
    if text.endswith("/"):
        segments += ["**", "*"]
    return fits(segments, path[1:].split("/"))


@given(texts())
def test_a_grant_is_what_the_plain_model_says(text: str) -> None:
    pattern = read(text)

    assert [path for path in PATHS if pattern.matches(path, deny=False)] == [
        path for path in PATHS if model(text, path)
    ]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One where every path of PATHS is a directory."""
    if shutil.which("git") is None:
        pytest.skip("needs git, whose .gitignore this compares with")
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "--quiet", root], check=True)
    for path in PATHS:
        (root / path[1:]).mkdir(parents=True, exist_ok=True)
    return root


@given(text=texts())
@settings(max_examples=rounds(60))
def test_a_denial_is_what_git_ignores(text: str, repository: Path) -> None:
    pattern = read(text)

    assert {path for path in PATHS if pattern.matches(path, deny=True)} == ignored_by_git(repository, text)


def ignored_by_git(repository: Path, text: str) -> set[str]:
    (repository / ".git/info/exclude").write_text(text + "\n")
    answer = subprocess.run(
        ["git", "-c", "core.excludesFile=/dev/null", "check-ignore", "--no-index", "--stdin", "-z"],
        cwd=repository,
        input="\0".join(path[1:] for path in PATHS),
        text=True,
        stdout=subprocess.PIPE,
        check=False,
    )
    assert answer.returncode in (0, 1)  # 1: none of them
    return {"/" + path for path in answer.stdout.split("\0") if path}


@given(st.lists(texts(), max_size=6), st.booleans())
def test_asking_all_at_once_is_asking_each(written: list[str], deny: bool) -> None:
    patterns = [read(text) for text in written]
    at_once = match_any(patterns, deny=deny)

    for path in PATHS:
        assert at_once(path) == any(pattern.matches(path, deny=deny) for pattern in patterns), path


@given(texts(), st.booleans())
def test_every_path_that_a_pattern_matches_has_its_word(text: str, deny: bool) -> None:
    pattern = read(text)

    for path in PATHS:
        if pattern.word is not None and pattern.matches(path, deny=deny):
            assert pattern.word in words(path)


@given(texts(), texts(), st.booleans())
@settings(max_examples=rounds(300))
def test_a_pattern_that_covers_another_matches_whatever_that_grants(outer: str, inner: str, deny: bool) -> None:
    one, other = read(outer), read(inner)
    matched = [path for path in PATHS if other.matches(path, deny=False)]
    missed = [path for path in matched if not one.matches(path, deny=deny)]

    if one.covers(other, deny=deny):
        assert not missed


@given(texts(), st.booleans())
def test_a_pattern_covers_itself_and_everything_covers_it(text: str, deny: bool) -> None:
    pattern = read(text)

    assert pattern.covers(pattern, deny=deny)
    assert read("/**").covers(pattern, deny=deny)


@given(texts(), texts())
def test_a_denial_covers_whatever_the_same_grant_covers(outer: str, inner: str) -> None:
    if read(outer).covers(read(inner), deny=False):
        assert read(outer).covers(read(inner), deny=True)
