from typing import Any

import pytest

from agentos.sandbox.policy import (
    BadPolicy,
    Directory,
    Interpreter,
    Limits,
    Policy,
    Program,
    RootImage,
)
from tests.support.runs.rows import each_row


@each_row("name", ["", "/etc", "..", "../x", "a/../b", "a/", "./a", "a\0"])
def test_only_names_below_a_directory_can_be_protected_in_it(name: str) -> None:
    with pytest.raises(BadPolicy, match="protected"):
        Directory("/srv", (name,))


@each_row("path", ["", "relative", "/a/../b", "/a/", "/a//b", "/a\0b"])
def test_only_plain_absolute_paths_are_taken(path: str) -> None:
    with pytest.raises(BadPolicy, match="workspace"):
        Policy(workspace=path)
    with pytest.raises(BadPolicy, match="prefix"):
        Interpreter("/usr/bin/python3", path, "/usr")


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(BadPolicy, match="memory: 0 is less than 1"):
        Limits(memory=0)


@each_row(("argv", "environment"), [([], {}), ([""], {}), (["a\0b"], {}), (["a"], {"A=B": ""}), (["a"], {"": ""})])
def test_what_no_program_can_be_given_is_refused(argv: list[str], environment: dict[str, str]) -> None:
    with pytest.raises(BadPolicy):
        Program(argv, environment)


def test_on_the_hosts_network_there_are_no_sockets_of_its_own() -> None:
    with pytest.raises(BadPolicy, match="sockets"):
        Policy(network="host", sockets=(("tcp", "127.0.0.1", 80),))


def test_a_script_and_a_directory_for_the_code_exclude_each_other() -> None:
    with pytest.raises(BadPolicy, match="script and code"):
        Policy(script="/a.py", code="/b")


@each_row(
    ("also", "why"),
    [
        ({}, "only an image"),
        ({"image": RootImage("/i"), "profile": "strict"}, "strict"),
        ({"image": RootImage("/i"), "workspace": "/w"}, "workspace"),
    ],
)
def test_root_inside_is_that_of_an_image_without_files_of_the_hosts(also: dict[str, Any], why: str) -> None:
    with pytest.raises(BadPolicy, match=f"inside_root: .*{why}"):
        Policy(inside_root=True, **also)
