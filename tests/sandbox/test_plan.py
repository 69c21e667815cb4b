"""Whatever is asked of whatever host, the steps come in an order that works and ends with everything confined."""

import os
from pathlib import Path

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentos.sandbox import steps as s
from agentos.sandbox.encoded_steps import encode
from agentos.sandbox.files.root_files import (
    NETWORK_FILES,
    SYSTEM_FILES,
    SYSTEM_PATHS,
    find_public_parts,
    list_runtime_files,
)
from agentos.sandbox.files.sub_ids import SubIds
from agentos.sandbox.filters import seccomp
from agentos.sandbox.host import Host
from agentos.sandbox.inside.programs.shim import select_steps
from agentos.sandbox.plan import NEWNET, plan_entry, plan_sandbox, split_plan
from agentos.sandbox.policy import (
    NETWORKS,
    PROFILES,
    BadPolicy,
    Directory,
    Image,
    Interpreter,
    Limits,
    Overlay,
    Policy,
    Program,
    RootImage,
)
from agentos.sandbox.steps import Step
from agentos_sdk.values import HostIds
from tests.support.runs.rows import each_row

MOUNTING = (s.MountRoot, s.MakeDirectory, s.WriteFile, s.Link, s.Bind, s.Protect, s.MountTmpfs, s.MountProc)
OPENING = (s.OpenSource, s.DetachSource, s.DetachImage)
paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda names: "/x/" + "/".join(names))
interpreters = st.builds(Interpreter, st.just("/x/bin/python"), paths, paths)
policies = st.builds(
    Policy,
    interpreter=st.none() | interpreters,
    script=st.none() | paths,
    workspace=st.none() | paths | st.builds(Directory, paths, st.sampled_from(((), ("a", "b/c")))),
    sdk=st.none() | paths,
    socket=st.none() | paths,
    network=st.sampled_from(NETWORKS),
    limits=st.builds(Limits, open_files=st.integers(1, 1 << 30)),
    profile=st.sampled_from(PROFILES),
)
hosts = st.builds(
    Host,
    uid=st.sampled_from((0, 1001)),
    gid=st.just(0),
    architecture=st.sampled_from(("x86_64", "aarch64")),
    directories=st.frozensets(st.sampled_from((*SYSTEM_PATHS, *SYSTEM_FILES, *NETWORK_FILES["host"]))),
    links=st.just({}),
    landlock_abi=st.integers(0, 9),
    cgroup_namespace=st.booleans(),
    memory_cgroup=st.booleans(),
    memfd_noexec=st.booleans(),
    hard_limits=st.dictionaries(st.sampled_from(("NOFILE", "FSIZE")), st.integers(0, 4096)),
)
TRUE = Program(["/bin/true"])


def made(policy: Policy, host: Host, program: Program = TRUE) -> tuple[Step, ...]:
    return plan_sandbox(policy, program, host, HostIds(70000, 70000) if host.uid == 0 else None)


plans = st.builds(made, policies, hosts)


def at(steps: tuple[Step, ...], kind: type) -> int:
    """Where the only step of its kind is."""
    (place,) = [place for place, step in enumerate(steps) if type(step) is kind]
    return place


@given(plans)
def test_nothing_is_mounted_after_the_root_is_switched(steps: tuple[Step, ...]) -> None:
    behind = steps[at(steps, s.SwitchRoot) :]

    assert not [step for step in behind if isinstance(step, (*MOUNTING, *OPENING))]


@given(plans)
def test_nothing_leads_back_when_the_root_is_switched(steps: tuple[Step, ...]) -> None:
    closed = at(steps, s.CloseSources)

    assert closed < at(steps, s.SwitchRoot)
    assert not [step for step in steps[closed:] if isinstance(step, OPENING)]


@given(policies, hosts)
def test_memory_files_are_made_unexecutable_before_the_identity_is_taken(policy: Policy, host: Host) -> None:
    steps = made(policy, host)
    places = [place for place, step in enumerate(steps) if isinstance(step, s.ForbidExecutableMemfds)]

    assert len(places) == (policy.profile == "strict" and host.memfd_noexec)
    assert all(place < at(steps, s.TakeIdentity) for place in places)


@given(policies, hosts)
def test_no_place_to_write_to_is_executable_in_strict(policy: Policy, host: Host) -> None:
    steps = made(policy, host)
    mounts = [one for one in steps if isinstance(one, s.MountTmpfs) or (isinstance(one, s.Bind) and one.writable)]

    assert policy.profile != "strict" or not any(mount.executable for mount in mounts)


@given(policies, hosts)
def test_only_the_hosts_network_is_not_its_own(policy: Policy, host: Host) -> None:
    steps = made(policy, host)
    (clone,) = [step for step in steps if isinstance(step, s.Clone)]
    routes = [place for place, step in enumerate(steps) if isinstance(step, s.RouteToLoopback)]
    sources = {step.source for step in steps if isinstance(step, s.Bind)}
    files = {step.path: step.text for step in steps if isinstance(step, s.WriteFile)}

    assert bool(clone.flags & NEWNET) == (policy.network != "host")
    assert len(routes) == (policy.network == "filtered")
    assert all(place < at(steps, s.DropCapabilities) for place in routes)
    assert ("/etc/resolv.conf" in sources) <= (policy.network == "host")
    assert files.get("/etc/resolv.conf") == ("nameserver 127.0.0.1\n" if policy.network == "filtered" else None)
    assert ("/etc/ssl" in sources) == (policy.network != "none" and "/etc/ssl" in host.directories)


@given(plans)
def test_what_is_bound_was_opened_before_the_identity_is_taken(steps: tuple[Step, ...]) -> None:
    opened = {step.path for step in steps[: at(steps, s.TakeIdentity)] if isinstance(step, OPENING)}
    bound = {step.source for step in steps if isinstance(step, s.Bind)}

    assert opened == bound
    for place, step in enumerate(steps):
        if isinstance(step, s.Bind):
            assert step.source in {former.path for former in steps[:place] if isinstance(former, OPENING)}


@given(plans)
def test_nothing_is_made_in_the_root_after_the_identity_is_taken(steps: tuple[Step, ...]) -> None:
    """With root, the root's tmpfs is the host's."""
    behind = steps[at(steps, s.TakeIdentity) :]

    assert not [step for step in behind if isinstance(step, s.MakeDirectory | s.WriteFile)]
    assert all(step.path.startswith("/tmp/") for step in behind if isinstance(step, s.Link))
    assert all(step.target.startswith("/tmp/") for step in behind if isinstance(step, s.Bind))
    made = {step.path for step in steps if isinstance(step, s.MakeDirectory)}
    assert {step.target for step in behind if isinstance(step, s.MountTmpfs)} <= made


@given(policies, policies, hosts)
def test_what_is_done_ahead_is_the_same_for_all_agents(one: Policy, other: Policy, host: Host) -> None:
    shared = ("interpreter", "sdk", "network")
    other = attrs.evolve(other, **{name: getattr(one, name) for name in shared})
    python = (one.interpreter.prefix, one.interpreter.base_prefix) if one.interpreter is not None else ()
    for policy in (one, other):
        workspace = policy.workspace.path if policy.workspace is not None else None
        own = {policy.script, policy.code, policy.socket, workspace} - {None}
        assume(not own & {one.sdk, *python})

    (ahead, rest), (same, _) = (split(made(policy, host)) for policy in (one, other))

    assert encode(ahead) == encode(same)
    assert not [step for step in ahead if isinstance(step, s.TakeIdentity | s.UnshareCgroup | s.MountTmpfs)]
    assert [step for step in rest if isinstance(step, s.Clone)] == ([] if host.uid else [made(one, host)[0]])


def split(steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    parts = split_plan(steps)
    assert parts is not None
    return parts


@given(policies, hosts)
def test_with_root_each_place_has_a_source_that_the_zygote_opens(policy: Policy, host: Host) -> None:
    steps = made(policy, host)
    detached = {step.target: step for step in steps if isinstance(step, s.DetachSource)}
    binds = {step.target: step for step in steps if isinstance(step, s.Bind)}

    assert detached.keys() == (binds.keys() if host.uid == 0 else set())
    assert bool(detached) != any(isinstance(step, s.OpenSource) for step in steps)
    for target, step in detached.items():
        assert (step.path, step.writable) == (binds[target].source, binds[target].writable)


@given(policies, hosts)
def test_no_link_is_followed_to_what_an_agent_may_have_made(policy: Policy, host: Host) -> None:
    steps = made(policy, host)
    agents = {policy.script, policy.code} | ({policy.workspace.path} if policy.workspace else set()) - {None}

    for step in steps:
        if isinstance(step, s.OpenSource) and step.path in agents:
            assert not step.follow
        if isinstance(step, s.DetachSource) and step.target.startswith(("/agent", "/workspace")):
            assert not step.follow


@given(plans)
def test_names_are_protected_when_the_workspace_is_there(steps: tuple[Step, ...]) -> None:
    for place, step in enumerate(steps):
        if isinstance(step, s.Protect):
            assert [type(former) for former in steps[:place] if getattr(former, "target", "") == step.directory][
                -1:
            ] == [s.Bind]


def test_an_image_is_mounted_with_root_and_refused_without() -> None:
    policy = Policy(workspace=Image("/state/a.img"))

    assert s.DetachImage("/state/a.img", "/workspace", (70000, 70000)) in made(policy, Host(0, 0, "x86_64"))
    with pytest.raises(BadPolicy, match="mounting an image needs root"):
        made(policy, Host(1001, 1001, "x86_64"))


@given(plans)
def test_capabilities_go_after_all_that_needs_them_and_before_the_filters(steps: tuple[Step, ...]) -> None:
    kinds = [type(step) for step in steps[at(steps, s.SetLimits) :]]

    last = [s.SetLimits, s.DropCapabilities, s.NoNewPrivileges, s.Landlock, s.Seccomp, s.Execute]
    assert kinds in (last, [kind for kind in last if kind is not s.Landlock])
    assert kinds[-1] is s.Execute


@given(policies, hosts)
def test_a_process_that_enters_a_sandbox_gets_the_last_steps_of_its_first_process(policy: Policy, host: Host) -> None:
    first, entered = made(policy, host), plan_entry(policy, TRUE, host)

    last = entered[at(entered, s.SetLimits) :]
    assert last == first[at(first, s.SetLimits) :]
    kinds = [type(step) for step in entered[: -len(last)]]
    assert kinds == [s.Join, s.TakeIdentity, s.Descend]
    assert entered[1] == first[at(first, s.TakeIdentity)]


@given(plans)
def test_mounts_are_private_before_the_first_one_is_made(steps: tuple[Step, ...]) -> None:
    private = at(steps, s.PrivateMounts)

    assert not [step for step in steps[:private] if isinstance(step, MOUNTING)]


@given(plans)
def test_nothing_is_mounted_over_what_was_shown_before(steps: tuple[Step, ...]) -> None:
    targets = [step.target for step in steps if isinstance(step, s.Bind | s.MountTmpfs | s.MountProc)]

    for place, target in enumerate(targets):
        assert not [later for later in targets[place + 1 :] if target == later or target.startswith(later + "/")]


@given(plans)
def test_only_the_workspace_can_be_written_to(steps: tuple[Step, ...]) -> None:
    assert {step.target for step in steps if isinstance(step, s.Bind) and step.writable} <= {"/workspace"}


@given(plans)
def test_every_file_system_in_memory_has_a_size(steps: tuple[Step, ...]) -> None:
    assert all(step.size > 0 and step.inodes > 0 for step in steps if isinstance(step, s.MountTmpfs | s.MountRoot))


@given(plans)
def test_all_namespaces_are_new_but_the_network_where_it_was_asked_for(steps: tuple[Step, ...]) -> None:
    clone = steps[0]

    assert isinstance(clone, s.Clone)
    assert clone.flags & ~0x40000000 == 0x10000000 | 0x20000000 | 0x4000000 | 0x8000000 | 0x20000
    assert any(isinstance(step, s.PrivateMounts) for step in steps), "mounts are as they are when it is used"
    assert bool(clone.flags & 0x40000000) == any(isinstance(step, s.LoopbackUp) for step in steps)


@given(policies, hosts)
def test_no_process_inside_is_root_outside(policy: Policy, host: Host) -> None:
    clone = made(policy, host)[0]

    assert isinstance(clone, s.Clone)
    for line in (clone.uid_map, clone.gid_map):
        inside, outside, count = map(int, line.split())
        assert (inside, count) == (1000, 1)
        assert outside != 0 or (host.uid != 0 and line == clone.gid_map)
    assert clone.deny_setgroups == (host.uid != 0)


@given(policies, hosts)
def test_no_limit_is_above_the_hosts(policy: Policy, host: Host) -> None:
    limits = next(dict(step.limits) for step in made(policy, host) if isinstance(step, s.SetLimits))

    assert all(limits[name] <= hard for name, hard in host.hard_limits.items())
    assert limits["CORE"] == 1
    assert ("DATA" in limits) != host.memory_cgroup


@given(policies, hosts)
def test_what_would_hold_memory_unseen_is_refused_where_no_group_counts_it(policy: Policy, host: Host) -> None:
    found = next(step.program for step in made(policy, host) if isinstance(step, s.Seccomp))

    wanted = seccomp.filter_bytes(policy.profile, host.architecture, host.memory_cgroup, host.memfd_noexec)
    assert found == wanted.hex()


@pytest.mark.parametrize("outer", [None, HostIds(0, 70000), HostIds(70000, 0)])
def test_with_root_a_program_without_an_identity_of_its_own_is_refused(outer: HostIds | None) -> None:
    with pytest.raises(BadPolicy, match="uid and gid of its own"):
        plan_sandbox(Policy(), TRUE, Host(0, 0, "x86_64"), outer)


def test_without_root_no_other_user_can_be_chosen() -> None:
    with pytest.raises(BadPolicy, match="without root"):
        plan_sandbox(Policy(), TRUE, Host(1001, 1001, "x86_64"), HostIds(70000, 70000))


@each_row("prefix", ["/", "/root", "/home", "/etc", "/workspace"])
def test_an_interpreter_that_would_show_everything_is_refused(prefix: str) -> None:
    with pytest.raises(BadPolicy, match="contains more than an interpreter"):
        made(Policy(Interpreter("/bin/python", prefix, prefix)), Host(1001, 1001, "x86_64"))


@pytest.mark.parametrize("prefix", ["/workspace/venv", "/agent/python", "/proc/self/root"])
def test_an_interpreter_in_a_place_that_the_sandbox_needs_is_refused(prefix: str) -> None:
    with pytest.raises(BadPolicy, match="uses for its own files"):
        made(Policy(Interpreter("/bin/python", prefix, prefix)), Host(1001, 1001, "x86_64"))


def test_the_environment_is_what_was_given_and_what_the_sandbox_is() -> None:
    program = Program(["x"], {"A": "1", "HOME": "/tmp"})
    execute = made(Policy(socket="/s"), Host(1001, 1001, "x86_64"), program)[-1]

    assert isinstance(execute, s.Execute)
    environment = dict(execute.environment)
    assert environment.keys() == {"PATH", "HOME", "TMPDIR", "LANG", "USER", "LOGNAME", "AGENTOS_SOCKET", "A"}
    assert (environment["A"], environment["HOME"]) == ("1", "/tmp")


def test_files_of_runtimes_in_etc_are_bound() -> None:
    found = ("/etc/java-17-openjdk", "/etc/python3.11", "/etc/mime.types")
    steps = made(
        Policy(), Host(0, 0, "x86_64", directories=frozenset({"/usr", *found, "/etc/javascript", "/etc/shadow"}))
    )

    assert {step.source for step in steps if isinstance(step, s.Bind) and step.source.startswith("/etc/")} == {*found}


@pytest.mark.skipif(os.geteuid() != 0, reason="the files must be root's")
def test_only_files_of_runtimes_that_everyone_may_read_and_root_alone_may_write_are_shown(tmp_path: Path) -> None:
    for name in ("java-17-openjdk", "java-21", "java-25", "python3.11", "perl", "fonts", "javascript", "ssl", "ssh"):
        (tmp_path / name).mkdir()
    (tmp_path / "mime.types").touch()
    (tmp_path / "magic").touch(0o600)
    (tmp_path / "java-21").chmod(0o750)
    (tmp_path / "java-25").chmod(0o757)
    (tmp_path / "perl").chmod(0o775)
    os.chown(tmp_path / "fonts", 1000, 1000)
    (tmp_path / "python3").symlink_to("/root")

    assert list_runtime_files(str(tmp_path)) == ["/etc/java-17-openjdk", "/etc/mime.types", "/etc/python3.11"]


def test_of_a_tree_in_etc_only_what_every_user_may_read_is_shown(tmp_path: Path) -> None:
    """A kernel without root may have a group that reads keys, and its jails have it, too."""
    tree = tmp_path / "ssl"
    for name in ("certs/java", "private", "tls/private", "tls/misc"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").touch()
    (tree / "tls/cert.pem").symlink_to("misc/file")
    whole = [*find_public_parts(str(tree))]
    (tree / "private").chmod(0o710)
    (tree / "tls/private/file").chmod(0o640)
    (tree / "key.pem").touch(0o600)

    parts = [*find_public_parts(str(tree))]

    assert whole == [str(tree)]
    assert parts == [f"{tree}/{name}" for name in ("certs", "tls/cert.pem", "tls/misc")]
    assert find_public_parts(str(tmp_path / "none")) == ()


def test_parts_of_the_certificates_are_shown_with_a_network_only() -> None:
    host = Host(0, 0, "x86_64", directories=frozenset({"/etc/ssl/certs"}), links={"/etc/ssl/cert.pem": "certs/all"})

    shown = [
        {step.source for step in steps if isinstance(step, s.Bind) and step.source.startswith("/etc/")}
        | {step.path for step in steps if isinstance(step, s.Link) and step.path.startswith("/etc/")}
        for steps in (made(Policy(network="none"), host), made(Policy(network="filtered"), host))
    ]

    assert shown == [set(), {"/etc/ssl/certs", "/etc/ssl/cert.pem"}]


def test_root_inside_is_refused_where_limits_would_count_for_each_of_its_ids() -> None:
    policy = Policy(image=RootImage("/i"), inside_root=True)

    for memory, pids, what in (
        (False, False, "memory and processes"),
        (True, False, "processes"),
        (False, True, "memory"),
    ):
        with pytest.raises(BadPolicy, match=f"user root: no control group counts its {what}"):
            made(policy, Host(0, 0, "x86_64", memory_cgroup=memory, pids_cgroup=pids))
    assert made(policy, Host(1001, 1001, "x86_64"))[0][1:4] == ("0 1001 1", "0 1001 1", True)  # one id: they count


def test_pid_1_of_root_inside_has_an_id_of_its_own_and_forwards_signals() -> None:
    policy = Policy(image=RootImage("/i"), inside_root=True)
    steps = made(policy, Host(0, 0, "x86_64", memory_cgroup=True, pids_cgroup=True))

    assert steps[at(steps, s.Clone)][1:3] == ("0 70000 65537",) * 2
    init = select_steps(steps)
    assert [step.uid for step in init if isinstance(step, s.TakeIdentity)] == [65536]
    assert [step.keep for step in init if isinstance(step, s.DropCapabilities)] == [s.KILL]
    plain = select_steps(made(Policy(image=RootImage("/i")), Host(0, 0, "x86_64")))
    assert [step.keep for step in plain if isinstance(step, s.DropCapabilities)] == [0]


def test_without_root_a_block_is_of_the_users_own_ids_where_groups_count_and_nothing_is_kept() -> None:
    host = Host(1001, 1002, "x86_64", memory_cgroup=True, pids_cgroup=True, sub_ids=SubIds(100000, 200000, "/u", "/g"))
    policy = Policy(image=RootImage("/i"), inside_root=True)
    steps = made(policy, host)

    assert steps[0][1:] == ("0 1001 1\n1 100000 65536", "0 1002 1\n1 200000 65536", False, ("/u", "/g"))
    assert steps[at(steps, s.TakeIdentity)] == s.TakeIdentity(0, 0, True, 65536)
    for less in (replace(host, pids_cgroup=False), replace(host, memory_cgroup=False), replace(host, sub_ids=None)):
        assert made(policy, less)[0][1:] == ("0 1001 1", "0 1002 1", True, None)
    for kept in ({"workspace": Overlay("/p", "/u")}, {"image": RootImage("/i", upper="/u")}):
        assert made(attrs.evolve(policy, **kept), host)[0][1:] == ("0 1001 1", "0 1002 1", True, None)
