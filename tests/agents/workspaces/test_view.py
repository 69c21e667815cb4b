"""Which request a path becomes in a caller's view; what is opened for it is tested in tests/services/files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentos.agents.workspaces.view import View
from agentos.services.files.as_user import Identity
from agentos_sdk.errors import BadRequest, PermissionDenied
from tests.support.runs.rows import each_row


@contextmanager
def open_root() -> Iterator[int]:
    fd = os.open("/", os.O_PATH)
    try:
        yield fd
    finally:
        os.close(fd)


HOST = View("/srv/fleet", "/home/op")
JAIL = View(
    "/srv/fleet",
    "/home/op",
    roots={"/workspace": open_root, "/agent": open_root},
    refused={"/tmp": "not yours"},
    identity=Identity(70000, 70000),
    max_size=10,
    single_link=True,
)


@each_row(
    ("path", "top", "name", "beneath"),
    [
        ("notes.md", "/workspace", "/workspace/notes.md", "notes.md"),
        ("/workspace", "/workspace", "/workspace", "."),
        ("/agent/./code.py", "/agent", "/agent/code.py", "code.py"),
        ("//workspace/a/", "/workspace", "/workspace/a", "a/"),
        ("../../etc/passwd", "/workspace", "/workspace/etc/passwd", "../../etc/passwd"),  # openat2 stops at the root
    ],
)
def test_a_path_of_the_jail_leads_beneath_one_of_its_roots(path: str, top: str, name: str, beneath: str) -> None:
    request = JAIL.request(path)

    assert (request.top, request.name, request.path) == (top, name, beneath)
    assert (request.identity, request.max_size) == (Identity(70000, 70000), 10)


@pytest.mark.parametrize(("path", "name"), [("/etc/hosts", "/etc/hosts"), ("~/notes", "/home/op/notes")])
def test_all_other_paths_of_an_agent_are_on_the_host_and_hide_what_its_own_names_mean(path: str, name: str) -> None:
    request = JAIL.request(path)

    assert (request.top, request.name, request.hidden) == ("", name, ("/workspace", "/agent"))
    assert (request.identity, request.owner, request.single_link) == (None, Identity(70000, 70000), True)


@pytest.mark.parametrize(
    ("path", "name"), [("a/../b", "/srv/fleet/b"), ("~", "/home/op"), ("/workspace/a", "/workspace/a")]
)
def test_without_a_jail_relative_paths_start_at_the_base(path: str, name: str) -> None:
    request = HOST.request(path)

    assert (request.top, request.name, request.hidden) == ("", name, ())


@pytest.mark.parametrize("path", ["/tmp", "/tmp/a", "//tmp"])
def test_a_refused_name_is_refused_with_its_reason(path: str) -> None:
    with pytest.raises(PermissionDenied, match=f"{path}: not yours"):
        JAIL.request(path)


@pytest.mark.parametrize("view", [HOST, JAIL])
def test_no_other_users_home_can_be_named(view: View) -> None:
    with pytest.raises(BadRequest, match=r"a file with this name is \./~bob"):
        view.request("~bob")
