"""Which variables no command is given, and which make another command of it."""

import pytest

from agentos.permissions.environment import changes_what_runs, read_by_bash


@pytest.mark.parametrize(
    "name",
    [
        *("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "CDPATH", "GLOBIGNORE", "EXECIGNORE", "IFS"),
        *("BASH_FUNC_ls%%", "BASH_FUNC_ls()", "ls()", "ls%%", "BASH_XTRACEFD", "BASH_COMPAT", "POSIXLY_CORRECT"),
    ],
)
def test_what_bash_reads_as_code_or_as_other_rules_is_not_given(name: str) -> None:
    assert read_by_bash([name, "MINE"]) == [name]


@pytest.mark.parametrize("name", ["ENVIRONMENT", "MY_ENV", "BASH", "PS1", "LANG", "HOME", "PATH"])
def test_what_bash_doesnt_read_so_is_given(name: str) -> None:
    assert read_by_bash([name]) == []


@pytest.mark.parametrize(
    "name", ["PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "GIT_SSH_COMMAND", "PAGER", "HOME", "a b", "x%%"]
)
def test_what_changes_what_runs_is_told(name: str) -> None:
    assert changes_what_runs({name: "x", "MINE": "y"}) == [name]


def test_a_locale_counts_where_its_characters_may_hide_a_backslash() -> None:
    plain = {
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "C",
        "LC_CTYPE": "C.utf8",
        "LC_TIME": "",
        "LC_NUMERIC": "sr_RS.UTF-8@latin",
    }

    assert changes_what_runs(plain) == []
    assert changes_what_runs({"LANG": "ja_JP.SJIS", "LC_ALL": "zh_TW.BIG5", "LC_TIME": "de_DE"}) == [
        *("LANG", "LC_ALL", "LC_TIME"),
    ]
