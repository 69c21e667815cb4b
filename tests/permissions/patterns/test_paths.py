import os

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentos.permissions.patterns.base import BadPattern, Names
from agentos.permissions.patterns.paths import (
    MAX_PATH_LENGTH,
    MAX_PATTERN_LENGTH,
    PathPattern,
    match_any,
    parse_path_pattern,
)
from tests.support.runs.rows import each_row

JAILED = Names(home="/home/ada", workspace="/workspace", code="/agent", config="/etc/agentos")
HOST = Names(home="/home/ada", config="/etc/agentos")


def read(text: str, names: Names = JAILED) -> PathPattern:
    return parse_path_pattern(text, names)


def grants(text: str, path: str) -> bool:
    return read(text).matches(path, deny=False)


def denies(text: str, path: str) -> bool:
    return read(text).matches(path, deny=True)


@each_row(
    ("text", "path", "granted", "denied"),
    [
        # an absolute path is that one; only a denial reaches beneath
        ("/data", "/data", True, True),
        ("/data", "/data/x", False, True),
        ("/data", "/data/x/y", False, True),
        ("/data", "/database", False, False),
        ("/data", "/x/data", False, False),
        # a slash at the end means a directory: a grant of what is below, a denial of itself as well
        ("/data/", "/data", False, True),
        ("/data/", "/data/x", True, True),
        ("/data/", "/data/x/y", True, True),
        ("/data/", "/database/x", False, False),
        # two stars at the end mean all that is inside
        ("/data/**", "/data", False, False),
        ("/data/**", "/data/x", True, True),
        ("/data/**", "/data/x/y", True, True),
        ("/data/**", "/database/x", False, False),
        ("/data/**/", "/data/x", False, True),
        ("/data/**/", "/data/x/y", True, True),
        # one star stays between its slashes
        ("/data/*", "/data/x", True, True),
        ("/data/*", "/data/x/y", False, True),
        ("/data/*", "/data", False, False),
        ("/data/*.txt", "/data/a.txt", True, True),
        ("/data/*.txt", "/data/.txt", True, True),
        ("/data/*.txt", "/data/a.txt/x", False, True),
        ("/data/*.txt", "/data/x/a.txt", False, False),
        ("/data/*.txt", "/data/a.txt.gz", False, False),
        ("/data/*/log", "/data/x/log", True, True),
        ("/data/*/log", "/data/x/y/log", False, False),
        ("/data/*/log", "/data/log", False, False),
        ("/data/a*b*c", "/data/a-b-b-c", True, True),
        ("/data/a*b*c", "/data/abcd", False, False),
        # two stars in the middle mean any number of directories, none included
        ("/a/**/b", "/a/b", True, True),
        ("/a/**/b", "/a/x/y/b", True, True),
        ("/a/**/b", "/a/b/c", False, True),
        ("/a/**/b", "/ax/b", False, False),
        ("/a/**/b", "/a/xb", False, False),
        ("/a/**/b/**/c", "/a/b/x/b/c", True, True),
        ("/a/**/b/**/c", "/a/x/b/y/c/z/c", True, True),
        ("/a/**/b/**/c", "/a/c/b", False, False),
        ("/a/**/b/c", "/a/b/b/c", True, True),
        # without a slash it holds at any depth
        (".env", "/.env", True, True),
        (".env", "/a/b/.env", True, True),
        (".env", "/a/.env/b", False, True),
        (".env", "/a/x.env", False, False),
        (".env", "/a/.environment", False, False),
        ("*.pem", "/a/b/c.pem", True, True),
        ("*.pem", "/a/c.pem/d", False, True),
        ("*.pem", "/a/c.pem.txt", False, False),
        (".ssh/", "/home/x/.ssh", False, True),
        (".ssh/", "/home/x/.ssh/config", True, True),
        (".ssh/", "/home/x/.ssh/a/b", True, True),
        (".ssh/", "/home/x/y.ssh/a", False, False),
        ("**/.config/gh", "/root/.config/gh", True, True),
        ("**/.config/gh", "/.config/gh", True, True),
        ("**/.config/gh", "/root/.config/x/gh", False, False),
        ("**/.config/gh", "/root/a.config/gh", False, False),
        # everything
        ("/**", "/a", True, True),
        ("/**", "/a/b", True, True),
        ("**", "/a/b", True, True),
        ("*", "/a/b", True, True),
        ("/*", "/a", True, True),
        ("/*", "/a/b", False, True),
        # one character, one of some
        ("/d/?", "/d/a", True, True),
        ("/d/?", "/d/ab", False, False),
        ("/d/[a-c]x", "/d/bx", True, True),
        ("/d/[a-c]x", "/d/dx", False, False),
        ("/d/[!a-c]x", "/d/dx", True, True),
        ("/d/[^a-c]x", "/d/bx", False, False),
        ("/d/[]x]", "/d/]", True, True),
        ("/d/[!]]", "/d/]", False, False),
        ("/d/[a-]", "/d/-", True, True),
        (r"/d/[\]]", "/d/]", True, True),
        (r"/d/[a\-z]", "/d/b", False, False),
        ("/d/[[a]", "/d/[", True, True),
        ("/d/[a&&b]", "/d/&", True, True),
        # a backslash takes the meaning away
        (r"/d/\*", "/d/*", True, True),
        (r"/d/\*", "/d/x", False, False),
        (r"/d/\[a]", "/d/[a]", True, True),
        (r"/d/\\", "/d/\\", True, True),
        (r"\!x", "/d/!x", True, True),
        (r"\#x", "/d/#x", True, True),
        (r"\~x", "/d/~x", True, True),
        (r"/d/\${x}", "/d/${x}", True, True),
        (r"\${x}", "/d/${x}", True, True),
        ("/d/$x", "/d/$x", True, True),
        ("/d/a.b+c(d)|e", "/d/a.b+c(d)|e", True, True),
        ("/d/a.b", "/d/axb", False, False),
        # the case matters
        ("/Data", "/data", False, False),
        ("*.pem", "/x.PEM", False, False),
        # names
        ("~/notes", "/home/ada/notes", True, True),
        ("~/", "/home/ada/x/y", True, True),
        ("~", "/home/ada", True, True),
        ("~/**", "/home/adam/x", False, False),
        ("${workspace}/*.py", "/workspace/a.py", True, True),
        ("${workspace}", "/workspace", True, True),
        ("${workspace}/", "/workspace/a/b", True, True),
        ("${code}/**", "/agent/main.py", True, True),
        ("${config}/**", "/etc/agentos/x", True, True),
    ],
)
def test_a_pattern_grants_what_it_names_and_denies_what_is_beneath_as_well(
    text: str, path: str, granted: bool, denied: bool
) -> None:
    assert (grants(text, path), denies(text, path)) == (granted, denied)


@each_row(
    ("text", "hint"),
    [
        ("", "write '/**'"),
        ("/", "write '/**'"),
        ("!x", "no exceptions"),
        ("#x", "no comments"),
        ("data/x", "write '/data/x', or '**/data/x'"),
        ("./x", "paths are absolute"),
        ("../x", "paths are absolute"),
        ("/a/../x", "without '.' and '..'"),
        ("/a/./x", "without '.' and '..'"),
        (r"/a/\.\./x", "without '.' and '..'"),
        ("..", "without '.' and '..'"),
        ("/a//x", "one slash"),
        ("//", "one slash"),
        ("/a/", None),
        ("/a\0b", "NUL"),
        (" /a", "a space"),
        ("/a ", "'[ ]'"),
        ("/a\n", "a space"),
        ("~root/x", "only '~/'"),
        ("~root", "only '~/'"),
        ("${home}/x", "${workspace}"),
        ("${parent}", "${workspace}"),
        ("${workspace", "${workspace}"),
        ("${workspace}x", "${workspace}"),
        ("/a/${workspace}", "at the beginning"),
        ("/a**", "'**' is a whole name"),
        ("/a/**.txt", "'**' is a whole name"),
        ("/a/***", "'**' is a whole name"),
        ("/a/[b", "'\\['"),
        ("/a/[b/c]d", "'\\['"),
        ("/a/[]", "'\\['"),
        ("/a/[!]", "'\\['"),
        ("/a/[z-a]", "backwards"),
        ("/a/[[:alpha:]]", "[a-zA-Z]"),
        ("/a/[.-/]", "'\\['"),
        ("/a\\", "backslash"),
        ("/a\\/b", "backslash"),
        ("/" + "a" * MAX_PATTERN_LENGTH, "longer"),
    ],
)
def test_what_can_never_match_is_refused_with_what_to_write_instead(text: str, hint: str | None) -> None:
    if hint is None:
        assert read(text).text == text
    else:
        with pytest.raises(BadPattern) as refused:
            read(text)
        assert hint in str(refused.value)


def test_a_set_that_holds_no_character_of_a_name_is_refused() -> None:
    with pytest.raises(BadPattern, match="no character that can be there"):
        read("/a/[!\x01-\U0010ffff]")


def test_no_range_and_no_negation_reaches_across_a_slash() -> None:
    for text in ("/data[!x]secret", "/data[+-9]secret", "/data?secret", "/data*secret"):
        assert not grants(text, "/data/secret"), text
        assert grants(text, "/data.secret"), text


def test_a_pattern_with_a_name_that_is_nothing_here_matches_nothing_but_is_still_checked() -> None:
    nowhere = read("${workspace}/**", HOST)

    assert not nowhere.matches("/workspace/x", deny=False)
    assert not nowhere.matches("/workspace/x", deny=True)
    assert not match_any([nowhere], deny=True)("/workspace/x")
    with pytest.raises(BadPattern):
        read("${workspace}/../x", HOST)


def test_a_home_with_special_characters_is_taken_literally() -> None:
    names = Names(home="/home/a*[b]\\c/")

    assert parse_path_pattern("~/x", names).matches("/home/a*[b]\\c/x", deny=False)
    assert not parse_path_pattern("~/x", names).matches("/home/aa[b]\\c/x", deny=False)


def test_a_home_that_is_the_root_is_no_obstacle() -> None:
    names = Names(home="/")

    assert parse_path_pattern("~/x", names).matches("/x", deny=False)
    assert parse_path_pattern("~/", names).matches("/x/y", deny=False)
    assert not parse_path_pattern("~/x", names).matches("/y/x", deny=False)


ODD = ["\n", "a\nb", "\r", "\u2028", "ü", "\U0001f600", "\udcff\udcfe", "a b", "\x7f", "\x01"]


@each_row("odd", ODD)
def test_any_character_but_a_slash_is_part_of_a_name(odd: str) -> None:
    assert denies("/**", f"/{odd}")
    assert denies(".env", f"/{odd}/.env")
    assert denies(".env", f"/.env/{odd}")
    assert denies("/a/**/b", f"/a/{odd}/b")
    assert grants("/a/*/b", f"/a/{odd}/b")
    assert grants("/a/**", f"/a/{odd}/{odd}")
    assert grants("/a/[!x]", "/a/" + odd[0])
    assert grants("/a/?", "/a/" + odd[0])
    assert match_any([read(".env")], deny=True)(f"/{odd}/.env")


@each_row("text", ["/data/x", "/data/*x", ".env", "*.txt", "/d/**/x"])
def test_a_newline_at_the_end_makes_another_file(text: str) -> None:
    path = {"/data/x": "/data/x", "/data/*x": "/data/ax", ".env": "/a/.env", "*.txt": "/a/b.txt", "/d/**/x": "/d/a/x"}

    assert grants(text, path[text])
    assert not grants(text, path[text] + "\n")
    assert not denies(text, path[text] + "\n")


def test_a_name_that_is_no_unicode_is_matched_as_the_system_tells_it() -> None:
    name = os.fsdecode(b"/data/\xff\xfe.txt")

    assert grants("/data/??.txt", name)
    assert grants(name, name)
    assert not grants("/data/?.txt", name)


def test_what_is_too_long_to_be_a_path_is_never_granted_and_always_denied() -> None:
    path = "/data/" + "a" * MAX_PATH_LENGTH

    assert not grants("/data/**", path)
    assert denies(".env", path)
    assert match_any([read(".env")], deny=True)(path)
    assert not match_any([read("/**")], deny=False)(path)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "text",
    [
        "/" + "a*" * 100 + "b",
        "*" + "a*" * 100 + "b",
        "/**" + "/*a" * 40 + "/**/b",
        "/**/a" * 40 + "/b",
        "**/" + "*/" * 60 + "b",
        "/" + "[a-z]*" * 60 + "[0-9]",
        "*" + "?" * 60 + "*b",
    ],
)
@pytest.mark.parametrize("path", ["/" + "a" * 4000, "/a" * 2000, "/aaaaaaa" * 500])
def test_no_path_makes_matching_take_long(text: str, path: str) -> None:
    """Where stars were tried in all their combinations, one of these would outlast the sun."""
    assert not grants(text, path)
    assert not denies(text, path)
    assert not match_any([read(text)], deny=True)(path)


@given(st.text(), st.booleans())
def test_any_text_is_read_or_refused_and_nothing_else_happens(text: str, slash: bool) -> None:
    try:
        pattern = read("/" + text if slash else text)
    except BadPattern:
        return
    assert pattern.matches("/a/b", deny=False) <= pattern.matches("/a/b", deny=True)


@given(st.text(alphabet=st.characters(exclude_characters="/\0"), min_size=1, max_size=8))
def test_a_name_with_all_its_characters_escaped_matches_itself_alone(name: str) -> None:
    assume(name not in (".", "..") and name == name.strip())
    pattern = read("/d/" + "".join(f"\\{character}" for character in name))

    assert pattern.matches(f"/d/{name}", deny=False)
    assert not pattern.matches(f"/d/{name}x", deny=False)
    assert not pattern.matches(f"/d/x{name}", deny=False)


@each_row(
    ("outer", "inner", "deny", "covers"),
    [
        ("/data/**", "/data/x", False, True),
        ("/data/**", "/data/x/*.txt", False, True),
        ("/data/**", "/data/**", False, True),
        ("/data/**", "/data/", False, True),
        ("/data/", "/data/**", False, True),
        ("/data/", "/data/sub/", False, True),
        ("/data/**", "/data", False, False),
        ("/data/**", "/database/x", False, False),
        ("/data/sub/**", "/data/**", False, False),
        ("/data", "/data/**", False, False),
        ("/data", "/data/**", True, True),
        ("/data", "/data", False, True),
        ("/data/*", "/data/**", False, False),
        ("/data/*", "/data/**", True, True),
        ("/data/*.txt", "/data/a*.txt", False, True),
        ("/data/a*.txt", "/data/*.txt", False, False),
        ("/data/[a-z]", "/data/[c-f]", False, True),
        ("/data/[a-z]", "/data/?", False, False),
        ("/data/[!a]", "/data/[b-c]", False, True),
        ("/data/?*", "/data/*", False, True),
        ("/data/*?", "/data/?*", False, True),
        ("/data/??*", "/data/*", False, False),
        ("/**", "*", False, True),
        ("*", "/**", False, True),
        ("**", "/data/**/x", False, True),
        (".env", "/data/.env", False, True),
        (".env", "/data/.env/x", False, False),
        (".env", "/data/.env/x", True, True),
        (".env", "/data/**", True, False),
        ("*.pem", "**/keys/*.pem", False, True),
        (".ssh/", "~/.ssh/id_rsa", True, True),
        (".ssh/", "~/.ssh/", False, True),
        ("/a/**/c", "/a/b/c", False, True),
        ("/a/**/c", "/a/**/b/**/c", False, True),
        ("/a/**/b/**/c", "/a/**/c", False, False),
        ("**/*/x", "/a/**/b/x", False, True),
        ("~/**", "/home/ada/x", False, True),
    ],
)
def test_one_pattern_covers_another(outer: str, inner: str, deny: bool, covers: bool) -> None:
    assert read(outer).covers(read(inner), deny=deny) == covers


def test_what_matches_nothing_here_neither_covers_nor_is_covered() -> None:
    nothing, everything = read("${workspace}/**", HOST), read("/**", HOST)

    assert not nothing.covers(nothing, deny=False)
    assert not everything.covers(nothing, deny=False)
    assert not nothing.covers(everything, deny=True)


def test_a_comparison_that_would_take_long_is_given_up() -> None:
    """To know whether the 25th character from the end is an a takes an automaton of 2**25 states."""
    outer, inner = read("/*a" + "?" * 24), read("/" + "[ab]" * 40 + "a" + "?" * 24)

    assert not outer.covers(inner, deny=False)  # it does
    assert outer.covers(read("/xya" + "b" * 24), deny=False)


def test_ordinary_long_patterns_are_still_compared() -> None:
    long = "/srv/data/projects/[a-z]*/releases/**/build-[0-9][0-9]*/artifacts/*.tar.gz"

    assert read("/srv/**").covers(read(long), deny=False)
    assert read("*.gz").covers(read(long), deny=False)
    assert read("/srv/*/projects/**/artifacts/*.tar.*").covers(read(long), deny=False)
    assert not read(long).covers(read("/srv/data/projects/**/*.tar.gz"), deny=False)
    assert read("**/" + "x" * 300).covers(read("/a/b/**/" + "x" * 300), deny=False)
