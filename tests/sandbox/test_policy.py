from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.sandbox.policy import (
    NETWORKS,
    PROFILES,
    BadPolicy,
    Directory,
    Image,
    Interpreter,
    Limits,
    Policy,
    Program,
    RootImage,
)
from tests.support.runs.rows import each_row

numbers = st.integers(1, 1 << 40)
limits = st.builds(Limits, **{one.name: numbers for one in attrs.fields(Limits)})
policies = st.builds(Policy, network=st.sampled_from(NETWORKS), limits=limits, profile=st.sampled_from(PROFILES))


@given(policies, policies)
def test_a_child_never_has_more_than_its_parent(child: Policy, parent: Policy) -> None:
    given = child.narrow_to(parent)

    assert all(ours <= theirs for ours, theirs in zip(*map(attrs.astuple, (given.limits, parent.limits)), strict=True))
    assert NETWORKS.index(given.network) <= NETWORKS.index(parent.network)
    assert PROFILES.index(given.profile) >= PROFILES.index(parent.profile)


@given(policies, policies)
def test_a_child_never_gets_more_than_it_asked_for(child: Policy, parent: Policy) -> None:
    assert child.narrow_to(parent).narrow_to(child) == child.narrow_to(parent)


@given(policies)
def test_a_policy_is_within_itself(policy: Policy) -> None:
    assert policy.narrow_to(policy) == policy


@pytest.mark.parametrize("parent", [None, "/srv/other", "/srv/data2"])
def test_a_directory_outside_of_the_parents_workspace_is_refused(parent: str | None) -> None:
    with pytest.raises(BadPolicy, match="not in the parent's workspace"):
        Policy(workspace="/srv/data").narrow_to(Policy(workspace=parent))


def test_a_directory_in_the_parents_workspace_is_kept() -> None:
    child = Policy(workspace="/srv/data/part")

    assert child.narrow_to(Policy(workspace="/srv/data")).workspace == Directory("/srv/data/part")


@pytest.mark.parametrize("path", ["/srv/.git/hooks", "/srv/.git/hooks/deep"])
def test_what_is_protected_from_the_parent_cannot_be_the_childs(path: str) -> None:
    with pytest.raises(BadPolicy, match="is protected in the parent's workspace"):
        Policy(workspace=path).narrow_to(Policy(workspace=Directory("/srv", (".git/hooks", ".envrc"))))


def test_what_is_protected_from_the_parent_is_protected_from_the_child() -> None:
    parent = Policy(workspace=Directory("/srv", (".git/hooks", ".git/config", ".envrc")))
    child = Policy(workspace=Directory("/srv/.git", ("x", "config")))

    assert child.narrow_to(parent).workspace == Directory("/srv/.git", ("x", "config", "hooks"))


def test_an_image_of_its_own_takes_nothing_from_the_parent() -> None:
    child = Policy(workspace=Image("/state/child.img"))

    assert child.narrow_to(Policy()).workspace == child.workspace
    with pytest.raises(BadPolicy, match="not in the parent's workspace"):
        Policy(workspace="/state/child.img").narrow_to(child)


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


def test_a_child_has_root_inside_only_if_its_parent_has() -> None:
    image = RootImage("/i")

    assert not Policy(image=image, inside_root=True).narrow_to(Policy(image=image)).inside_root
