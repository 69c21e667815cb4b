"""[[http.secrets]], and the permission sets that name them."""

from pathlib import Path

import pytest

from agentos.permissions.rule import PermissionSet
from agentos.services.http.destination import parse_destination
from tests.config.saying import agent, loaded, said

pytestmark = pytest.mark.usefixtures("home")

GITHUB = """
[[http.secrets]]
name = "github"
host = "api.github.com"
header = "Authorization: Bearer"
value_from = "env:GITHUB_TOKEN"
"""


def test_a_secret_has_a_place_a_header_and_a_source(home: Path) -> None:
    text = (
        GITHUB.replace("env:GITHUB_TOKEN", "file:token") + 'methods = ["GET", "HEAD"]\npaths = ["/repos/**", "/user"]'
    )
    [secret] = loaded(text).http.secrets

    assert (secret.name, secret.header, secret.prefix) == ("github", "Authorization", "Bearer ")
    assert secret.source == f"file:{home}/token"
    for request, sent in (
        ("GET https://api.github.com/repos/x", True),
        ("HEAD https://api.github.com/user", True),
        ("POST https://api.github.com/user", False),
        ("GET https://api.github.com/user/keys", False),
        ("GET https://api.github.com:444/user", False),
    ):
        assert secret.applies_to(parse_destination(request), False) is sent, request


def test_a_header_without_a_word_has_the_value_alone() -> None:
    [secret] = loaded(GITHUB.replace("Authorization: Bearer", "X-Api-Key")).http.secrets

    assert (secret.header, secret.prefix) == ("X-Api-Key", "")


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ('name = "github"', "", "2: http.secrets[0].name: required field missing"),
        ('host = "api.github.com"', "", "2: http.secrets[0].host: required field missing"),
        ('"github"', '"git hub"', "3: http.secrets[0].name: expected up to 64 letters, digits, '_', '-' and '.'"),
        ('"api.github.com"', '"*"', "4: http.secrets[0].host: expected one host, with a port if it isn't 443"),
        ('"api.github.com"', '"*.github.com"', "4: http.secrets[0].host: expected one host"),
        ('"api.github.com"', '"GET api.github.com"', "4: http.secrets[0].host: expected one host"),
        ('"api.github.com"', '"api.github.com/x"', "4: http.secrets[0].host: expected one host"),
        ('"api.github.com"', '"https://api.github.com"', "4: http.secrets[0].host: 'https://api.github.com': write"),
        ('"Authorization: Bearer"', '"Authorization Bearer"', "5: http.secrets[0].header: expected a header's name"),
        ('"Authorization: Bearer"', '"Host"', "5: http.secrets[0].header: the kernel sets Host itself"),
        ('"Authorization: Bearer"', '"X: a\\nb"', "5: http.secrets[0].header: expected a header's name"),
        ('"env:GITHUB_TOKEN"', '"ghp_012345"', "6: http.secrets[0].value_from: expected where the value is"),
        ('"env:GITHUB_TOKEN"', '"env:A B"', "6: http.secrets[0].value_from: expected where the value is"),
        ('TOKEN"', 'TOKEN"\nmethods = ["get"]', "7: http.secrets[0].methods: 'get api.github.com:443': before a space"),
        ('TOKEN"', 'TOKEN"\npaths = ["repos"]', "7: http.secrets[0].paths[0]: expected a path that begins with '/'"),
        ('TOKEN"', 'TOKEN"\npaths = ["/a/../b"]', "7: http.secrets[0].paths[0]: 'api.github.com:443/a/../b': a path"),
        ('TOKEN"', 'TOKEN"\nvalue = "x"', "7: http.secrets[0].value: unknown field"),
    ],
)
def test_a_mistake_names_the_field(before: str, after: str, line: str) -> None:
    [mistake] = said(GITHUB.replace(before, after))

    assert mistake.startswith(f"agentos.toml:{line}")
    assert "ghp_" not in mistake, "what may be a secret is not shown"


def test_two_secrets_have_two_names() -> None:
    [mistake] = said(GITHUB + GITHUB)

    assert mistake == "agentos.toml:9: http.secrets[1].name: the name 'github' is taken by another secret"


def test_a_set_names_secrets() -> None:
    config = loaded(GITHUB + '[permissions.coder]\nlevel = "standard"\nsecrets = ["github"]\n')

    found = config.permissions["coder"]
    assert isinstance(found, PermissionSet)
    assert found.secrets == ("github",)


@pytest.mark.parametrize(
    ("change", "conflict"),
    [
        (("", ""), True),
        (("Authorization: Bearer", "X-Key"), False),
        (("api.github.com", "api.gitlab.com"), False),
        (("api.github.com", "api.github.com:8443"), False),
        (('header = "', 'methods = ["POST"]\nheader = "'), True),
        (('header = "', 'paths = ["/gists/**"]\nheader = "'), False),
        (('header = "', 'paths = ["/repos/a/**"]\nheader = "'), True),
    ],
)
def test_a_set_has_no_two_secrets_for_one_header_of_the_same_requests(change: tuple[str, str], conflict: bool) -> None:
    first = GITHUB.replace('header = "', 'paths = ["/repos/**"]\nheader = "')
    second = GITHUB.replace('name = "github"', 'name = "other"').replace(*change, 1)

    text = first + second + '[permissions.coder]\nsecrets = ["github", "other"]\n'

    told = [
        "permissions.coder.secrets[1]: 'other' sets Authorization of the same requests as 'github':"
        " leave one of them out"
    ]
    if conflict:
        assert [each.partition(": ")[2] for each in said(text)] == told
    else:
        assert loaded(text).permissions["coder"].secrets == ("github", "other")


def test_a_set_that_names_a_secret_there_is_not_says_so() -> None:
    of_set = said(GITHUB + '[permissions.coder]\nsecrets = ["githib"]\n')
    of_agent = said(
        GITHUB + agent('command = ["true"]\npermissions = { level = "minimal", secrets = ["x", "github"] }')
    )

    assert of_set == [
        "agentos.toml:8: permissions.coder.secrets[0]: no secret is called 'githib', did you mean github?"
    ]
    assert [each.partition(": ")[2] for each in of_agent] == [
        "supervisor.children[0].permissions.secrets[0]: no secret is called 'x'"
    ]
