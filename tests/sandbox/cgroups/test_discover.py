"""Which groups are ours to divide, decided from texts and listings: version 1, version 2, both, nested, neither."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.sandbox.cgroups import discover as cgroups
from agentos.sandbox.cgroups.discover import (
    CgroupDirectory,
    HostCgroups,
    Mount,
    NoCgroups,
    V1Hierarchies,
    V2Scope,
    discover,
    parse_memberships,
    parse_mounts,
)
from agentos.sandbox.cgroups.values import CONTROLLERS
from tests.support.runs.rows import each_row

FILES = frozenset({"cgroup.procs", "cgroup.subtree_control"})
ROOT, USER = 0, 1000

names = st.text("abc.-_@\\: ", min_size=1, max_size=8).filter(lambda name: name not in (".", "..", "kernel"))
paths = st.lists(names, max_size=4).map(lambda parts: "/" + "/".join(parts))
limiting = st.frozensets(st.sampled_from(sorted(CONTROLLERS)))


def escaped(path: str) -> str:
    """A path as /proc/self/mountinfo writes it."""
    return re.sub(r"[ \\\n\t]", lambda found: f"\\{ord(found[0]):03o}", path)


def mount_line(kind: str, root: str, point: str, options: str = "rw") -> str:
    return f"31 23 0:28 {escaped(root)} {escaped(point)} rw,relatime shared:9 - {kind} {kind} {options}"


def group(*controllers: str, enabled: tuple[str, ...] = (), writable: bool = True) -> CgroupDirectory:
    return CgroupDirectory(FILES, writable, frozenset(controllers), frozenset(enabled))


def on_version_2(path: str, directories: dict[str, CgroupDirectory], root: str = "/", uid: int = ROOT) -> HostCgroups:
    return discover(f"0::{path}\n", mount_line("cgroup2", root, "/sys/fs/cgroup"), directories.get, uid)


def test_an_ordinary_user_scope_of_version_2_is_ours() -> None:
    path = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope"

    found = on_version_2(path, {f"/sys/fs/cgroup{path}": group("memory", "pids", "cpu")}, uid=USER)

    assert found == V2Scope(f"/sys/fs/cgroup{path}", CONTROLLERS)


def test_a_scope_without_a_controller_says_which_and_what_to_change() -> None:
    found = on_version_2("/a.scope", {"/sys/fs/cgroup/a.scope": group("memory", "pids", "io")})

    assert isinstance(found, V2Scope)
    assert found.controllers == {"memory", "pids"}
    (missing,) = found.missing
    assert (missing.limit, "Delegate=cpu" in missing.remedy) == ("cpu", True)
    assert "/sys/fs/cgroup/a.scope" in missing.reason


def test_a_scope_that_is_not_delegated_is_not_ours() -> None:
    directories = {"/sys/fs/cgroup/a.scope": group("memory", "pids", "cpu", writable=False)}

    found = on_version_2("/a.scope", directories, uid=USER)

    assert isinstance(found, NoCgroups)
    assert {missing.limit for missing in found.missing} == CONTROLLERS
    assert "can't be written by uid 1000: it isn't delegated" in found.missing[0].reason
    assert "systemd-run --user --scope -p Delegate=yes" in found.missing[0].remedy


def test_a_kernel_that_is_in_its_leaf_already_finds_the_scope_around_it() -> None:
    scope = group("memory", "pids", "cpu", enabled=("memory", "pids", "cpu"))
    leaf = group("memory", "pids", "cpu")

    found = on_version_2("/a.scope/kernel", {"/sys/fs/cgroup/a.scope": scope, "/sys/fs/cgroup/a.scope/kernel": leaf})

    assert found == V2Scope("/sys/fs/cgroup/a.scope", CONTROLLERS, in_leaf=True)


def test_a_group_that_is_only_called_kernel_is_no_leaf_of_ours() -> None:
    above = group("memory", "pids", "cpu", enabled=("memory", "pids", "cpu"), writable=False)
    here = group("memory", "pids", "cpu")

    found = on_version_2("/x/kernel", {"/sys/fs/cgroup/x": above, "/sys/fs/cgroup/x/kernel": here})

    assert found == V2Scope("/sys/fs/cgroup/x/kernel", CONTROLLERS)


def test_a_container_sees_its_own_part_of_the_hierarchy_at_the_mount() -> None:
    directories = {"/sys/fs/cgroup": group("memory", "pids", "cpu")}

    found = on_version_2("/docker/abc", directories, root="/docker/abc")

    assert found == V2Scope("/sys/fs/cgroup", CONTROLLERS)


def test_a_name_that_begins_with_dots_leads_nowhere_else() -> None:
    found = on_version_2("/..a/..", {"/sys/fs/cgroup/..a": group("memory")})

    assert isinstance(found, NoCgroups)
    assert isinstance(on_version_2("/..a", {"/sys/fs/cgroup/..a": group("memory")}), V2Scope)


@pytest.mark.parametrize(("path", "root"), [("/docker/abc", "/docker/ab"), ("/../other", "/"), ("/x", "/../..")])
def test_a_group_outside_of_what_is_mounted_is_not_found(path: str, root: str) -> None:
    found = on_version_2(path, {"/sys/fs/cgroup": group("memory")}, root=root)

    assert isinstance(found, NoCgroups)
    assert "isn't visible" in found.missing[0].reason


HERE_GROUPS = "9:name=systemd:/\n8:pids:/\n4:memory:/api/7a\n6:freezer:/\n2:cpuacct:/\n1:cpu:/\n0::/\n"
HERE_MOUNTS = "\n".join(
    [
        "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755",
        *(mount_line("cgroup", "/", f"/cg/{name}", f"rw,{name}") for name in ("cpu", "cpuacct", "memory", "freezer")),
        mount_line("cgroup", "/", "/cg/pids", "rw,pids"),
        mount_line("cgroup", "/", "/cg/systemd", "rw,name=systemd"),
        mount_line("cgroup2", "/", "/cg/unified"),
    ]
)


def here(path: str) -> CgroupDirectory | None:
    """A host with version 1, where version 2 is mounted beside it with nothing that limits an agent."""
    return group("hugetlb") if path == "/cg/unified" else group()


def test_version_2_that_is_mounted_without_useful_controllers_does_not_hide_version_1() -> None:
    found = discover(HERE_GROUPS, HERE_MOUNTS, here, ROOT)

    directories = {"memory": "/cg/memory/api/7a", **{name: f"/cg/{name}" for name in ("pids", "cpu", "cpuacct")}}
    assert found == V1Hierarchies({**directories, "freezer": "/cg/freezer"})


def test_of_two_versions_the_one_that_limits_more_is_taken_or_else_version_2() -> None:
    unified, memory = mount_line("cgroup2", "/", "/cg/unified"), mount_line("cgroup", "/", "/cg/memory", "rw,memory")
    cpu = mount_line("cgroup", "/", "/cg/cpu", "rw,cpu,cpuacct")

    def find(*mounts: str) -> HostCgroups:
        return discover("4:memory:/\n2:cpu,cpuacct:/\n0::/\n", "\n".join(mounts), lambda _: group("pids"), ROOT)

    assert isinstance(find(memory, unified), V2Scope)
    assert isinstance(find(memory, cpu, unified), V1Hierarchies)


def test_version_1_is_roots_and_says_so_to_others() -> None:
    found = discover(HERE_GROUPS, HERE_MOUNTS, lambda path: group("hugetlb", writable=False), USER)

    assert isinstance(found, NoCgroups)
    assert [missing.limit for missing in found.missing] == ["cpu", "memory", "pids"]
    assert all("can't be written by uid 1000" in missing.reason for missing in found.missing)


def test_version_1_without_a_controller_limits_with_the_others() -> None:
    groups, mountinfo = HERE_GROUPS.replace("8:pids:/\n", ""), HERE_MOUNTS.replace("rw,pids", "rw,devices")

    found = discover(groups, mountinfo, here, ROOT)

    assert isinstance(found, V1Hierarchies)
    assert [missing.limit for missing in found.missing] == ["pids"]
    assert "no pids hierarchy is visible" in found.missing[0].reason


def test_controllers_mounted_together_share_a_directory() -> None:
    found = discover("4:cpu,cpuacct:/x\n", mount_line("cgroup", "/", "/cg/cpu", "rw,cpu,cpuacct"), here, ROOT)

    assert isinstance(found, V1Hierarchies)
    assert found.directories == {"cpu": "/cg/cpu/x", "cpuacct": "/cg/cpu/x"}


def test_without_any_cgroup_file_system_nothing_is_promised() -> None:
    found = discover("0::/a\n", "31 23 0:28 / / rw - ext4 /dev/vda rw", lambda path: None, ROOT)

    assert isinstance(found, NoCgroups)
    assert {(missing.limit, missing.reason) for missing in found.missing} == {
        (name, "cgroup2 isn't mounted") for name in CONTROLLERS
    }


def test_a_mount_that_another_file_system_covers_is_not_believed() -> None:
    covered = {"/sys/fs/cgroup/a": CgroupDirectory(frozenset({"something"}), True)}

    assert isinstance(on_version_2("/a", covered), NoCgroups)


@given(limiting, limiting, paths, st.booleans(), st.booleans())
def test_what_is_found_and_what_is_missing_is_always_all(
    first: frozenset[str], second: frozenset[str], path: str, writable: bool, mounted: bool
) -> None:
    second -= first
    groups = "".join(f"{number}:{name}:{path}\n" for number, name in enumerate(sorted(first), 1)) + f"0::{path}\n"
    lines = [mount_line("cgroup", "/", f"/cg/{name}", f"rw,{name}") for name in sorted(first)]
    lines += [mount_line("cgroup2", "/", "/cg/unified")] if mounted else []

    def look(directory: str) -> CgroupDirectory:
        return group(*(second if directory.startswith("/cg/unified") else ()), writable=writable)

    found = discover(groups, "\n".join(lines), look, USER)

    usable = frozenset[str]()
    if isinstance(found, V2Scope):
        usable = found.controllers
        assert writable
        assert usable == second
    elif isinstance(found, V1Hierarchies):
        usable = CONTROLLERS & found.directories.keys()
        assert writable
        assert usable == first
    missing = {one.limit for one in found.missing}
    assert usable | missing == CONTROLLERS
    assert not usable & missing
    assert all(one.reason and one.remedy for one in found.missing)
    if writable and (first or (second and mounted)):
        assert len(usable) == max(len(first), len(second) if mounted else 0)


@given(paths, paths, names)
def test_a_mount_shows_exactly_what_lies_below_its_root(root: str, below: str, other: str) -> None:
    (mount,) = parse_mounts(mount_line("cgroup2", root, "/m n"))

    path = (root + below).replace("//", "/")
    inside = mount.directory(path)

    assert mount == Mount(root, "/m n", 2, frozenset())
    assert inside == ("/m n" + path.removeprefix(root.rstrip("/"))).rstrip("/")
    if root != "/":
        assert mount.directory(f"{root}{other.replace('/', '')}") is None


@given(st.lists(st.tuples(st.frozensets(st.sampled_from(["cpu", "pids", "name=x"])), paths)))
def test_every_line_of_our_memberships_is_read(own: list[tuple[frozenset[str], str]]) -> None:
    text = "".join(f"{number}:{','.join(sorted(of))}:{path}\n" for number, (of, path) in enumerate(own))

    assert [(one.controllers, one.path) for one in parse_memberships(text)] == own


OWN = "agentos-0123abcd-4026531836-100-5000"


@each_row(
    ("name", "left_behind"),
    [
        (OWN, False),
        ("agentos-0123abcd-4026531836-200-6000", False),  # lives
        ("agentos-0123abcd-4026531836-200-5999", True),  # another process has its pid now
        ("agentos-0123abcd-4026531836-300-1", True),  # no such process
        ("agentos-0123abcd-4026531837-300-1", False),  # of another PID namespace
        ("agentos-99999999-4026531837-300-1", True),  # of another boot
        ("agentos-0123abcd-4026531836-300", False),
        ("xagentos-0123abcd-4026531836-300-1", False),
        ("kernel", False),
        ("session-1.scope", False),
    ],
)
def test_only_what_a_dead_kernel_made_is_swept(name: str, left_behind: bool) -> None:
    assert cgroups.is_stale(name, OWN, {100: "5000", 200: "6000"}.get) is left_behind


def test_our_own_name_is_not_stale() -> None:
    name = cgroups.instance_name()

    assert cgroups.is_stale(name, name, lambda pid: name.rpartition("-")[2]) is False
    assert cgroups.is_stale(name, name, lambda pid: None) is True
