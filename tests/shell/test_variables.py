"""Which variables no command is given, and which make another command of it."""

from agentos.shell.variables import names_not_plain, names_read_by_bash
from tests.support.runs.rows import each_row


@each_row(
    "name",
    [
        *("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "CDPATH", "GLOBIGNORE", "EXECIGNORE", "IFS"),
        *("BASH_FUNC_ls%%", "BASH_FUNC_ls()", "ls()", "ls%%", "BASH_XTRACEFD", "BASH_COMPAT", "POSIXLY_CORRECT"),
    ],
)
def test_what_bash_reads_as_code_or_as_other_rules_is_not_given(name: str) -> None:
    assert names_read_by_bash([name, "MINE"]) == [name]


@each_row("name", ["ENVIRONMENT", "MY_ENV", "BASH", "PS1", "LANG", "HOME", "PATH"])
def test_what_bash_doesnt_read_so_is_given(name: str) -> None:
    assert names_read_by_bash([name]) == []


@each_row(
    "name",
    ["PATH", "LD_PRELOAD", "PYTHONPATH", "GIT_SSH_COMMAND", "PAGER", "HOME", "a b", "x%%", "MINE", "OPTIND", "PS4"],
)
def test_a_variable_that_is_not_on_the_list_may_change_what_runs(name: str) -> None:
    assert names_not_plain({name: "x", "CI": "1"}) == [name]


def test_the_variables_on_the_list_are_plain_data() -> None:
    assert names_not_plain(dict.fromkeys(("NO_COLOR", "CI", "PYTHONUNBUFFERED"), "1")) == []
    assert names_not_plain({"TZ": "Europe/Berlin", "TERM": "xterm-256color", "COLUMNS": "80"}) == []
    assert names_not_plain({"DEBIAN_FRONTEND": "noninteractive"}) == []


def test_a_value_that_a_program_would_evaluate_is_not_plain() -> None:
    """debconf makes Perl of DEBIAN_FRONTEND."""
    assert names_not_plain({"DEBIAN_FRONTEND": "x;system('id')", "COLUMNS": "a[$(id)]"}) == [
        "COLUMNS",
        "DEBIAN_FRONTEND",
    ]


def test_a_locale_counts_where_its_characters_may_hide_a_backslash() -> None:
    plain = {
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "C",
        "LC_CTYPE": "C.utf8",
        "LC_TIME": "",
        "LC_NUMERIC": "sr_RS.UTF-8@latin",
    }

    assert names_not_plain(plain) == []
    assert names_not_plain({"LANG": "ja_JP.SJIS", "LC_ALL": "zh_TW.BIG5", "LC_TIME": "de_DE"}) == [
        "LANG",
        "LC_ALL",
        "LC_TIME",
    ]
    assert names_not_plain({"LANG": "../../x.UTF-8"}) == ["LANG"]
