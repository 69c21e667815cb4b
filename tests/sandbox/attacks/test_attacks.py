"""What a hostile program tries against its walls, by name of what must not happen."""

# A file in /proc or /tmp keeps nobody waiting here.
# ruff: file-ignore[ASYNC220, ASYNC240]

import ctypes
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from agentos.sandbox.start.spawner import Spawner
from tests.sandbox import jail
from tests.sandbox.jail import a_plan, kill, line, python, run, start_spawner
from tests.support.wire import PATIENCE

RISKY = {
    "ptrace": 101,
    "io_uring_setup": 425,
    "bpf": 321,
    "keyctl": 250,
    "userfaultfd": 323,
    "perf_event_open": 298,
    "clone3": 435,
}
PRELUDE = f"""
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    'The error that a function of the C library ends with, by name; what it returned otherwise.'
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    return errno.errorcode[ctypes.get_errno()] if result == -1 else result
def attempt(function, *arguments):
    try:
        return function(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
SYS = {RISKY}
"""
x86_only = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls here are x86_64's")


async def attack(spawner: Spawner, code: str, *arguments: str, **policy: object) -> list[str]:
    """The lines that the attacker prints; it must come to its end."""
    ended = await run(spawner, python(PRELUDE + code, *arguments, **policy))
    assert (ended.err, ended.status.code) == ("", 0)
    return ended.out.splitlines()


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file that every user of the host may read and write."""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        os.chmod(place, 0o777)
        path = Path(place, "secret")
        path.write_text(secrets.token_hex(16))
        path.chmod(0o666)
        yield path


@pytest.mark.parametrize("kind", ["F_RDLCK", "F_WRLCK"])
@pytest.mark.parametrize("command", [1024, 1040])  # F_SETLEASE, and F_SETDELEG of later kernels
async def test_no_file_can_be_made_to_wait_for_by_a_lease(spawner: Spawner, kind: str, command: int) -> None:
    code = f"""
import fcntl
fd = os.open('/workspace/own', os.O_CREAT | os.O_RDONLY)
print(attempt(fcntl.fcntl, fd, {command}, fcntl.{kind}), attempt(fcntl.fcntl, fd, fcntl.F_GETLEASE))
"""
    assert await attack(spawner, code) == ["EPERM 2"]


async def test_the_hosts_shadow_file_is_not_there(spawner: Spawner) -> None:
    assert await attack(spawner, "print(attempt(open, '/etc/shadow'), os.path.exists('/etc/sudoers'))") == [
        "ENOENT False"
    ]


async def test_a_file_that_all_may_read_is_not_there(spawner: Spawner, secret: Path) -> None:
    code = "print(attempt(open, sys.argv[1]), attempt(open, '/proc/self/root' + sys.argv[1]))"
    assert secret.read_text()
    assert await attack(spawner, code, str(secret)) == ["ENOENT ENOENT"]


async def test_nothing_is_written_to_the_host(spawner: Spawner, secret: Path) -> None:
    before = secret.read_text()
    code = """
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
open(sys.argv[1], 'w').write('changed')
print(open(sys.argv[1]).read())
"""
    assert await attack(spawner, code, str(secret)) == ["changed"], "it has a /tmp of its own"
    assert secret.read_text() == before


async def test_the_root_has_nothing_but_what_it_was_given(spawner: Spawner) -> None:
    (names,) = await attack(spawner, "print(*os.listdir('/'))", interpreter=jail.PYTHON)

    given = {
        "agent",
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "run",
        "sbin",
        "sdk",
        "tmp",
        "usr",
    }
    first = {Path(path).parts[1] for path in (sys.prefix, sys.base_prefix)}
    assert set(names.split()) <= given | {"workspace"} | first


async def test_a_home_has_nothing_but_the_interpreter(spawner: Spawner) -> None:
    code = """
for place in ('/root', '/home'):
    for directory, names, files in os.walk(place):
        if any(directory.startswith(own) for own in sys.argv[1:]): names[:] = []
        elif files: print(directory, files)
"""
    assert await attack(spawner, code, sys.prefix, sys.base_prefix) == []


@pytest.mark.parametrize(
    "place", ["/usr", "/usr/bin", "/etc", "/", "/proc", "/dev", "/sdk", "/run", "/agent", sys.prefix]
)
async def test_no_file_is_made_in_the_systems_directories(spawner: Spawner, place: str) -> None:
    (how,) = await attack(spawner, "print(attempt(open, sys.argv[1] + '/planted', 'w'))", place)

    assert how in ("EROFS", "EACCES", "EPERM", "ENOENT")
    assert not Path(place, "planted").exists()


async def test_read_only_is_for_good(spawner: Spawner) -> None:
    code = "print(call('mount', b'none', b'/usr', None, 0x1020, None), call('mount', b'x', b'/tmp', b'tmpfs', 0, None))"
    assert await attack(spawner, code) == ["EPERM EPERM"]


async def test_other_processes_are_not_seen_and_not_hit(spawner: Spawner) -> None:
    code = """
print(*sorted(int(name) for name in os.listdir('/proc') if name.isdigit()))
print(attempt(os.kill, int(sys.argv[1]), 9))
"""
    with subprocess.Popen(["sleep", "600"]) as victim:
        try:
            seen, hit = await attack(spawner, code, str(victim.pid))
            assert victim.poll() is None
        finally:
            victim.kill()
    assert (seen, hit) == ("1 2", "ESRCH")


async def test_two_programs_dont_see_each_other(spawner: Spawner) -> None:
    other = await spawner.spawn(python("import time; print(1, flush=True); time.sleep(600)"))
    await line(other)

    assert (await run(spawner, a_plan("/bin/sh", "-c", "ls -d /proc/[0-9]*"))).out.split() == ["/proc/1", "/proc/2"]
    await kill(other)


async def test_pid_1_cannot_be_looked_into(spawner: Spawner) -> None:
    code = """
for name in ('environ', 'mem', 'maps', 'auxv'):
    print(attempt(lambda: open(f'/proc/1/{name}', 'rb').read(1)))
for name in ('exe', 'cwd', 'root', 'fd/0', 'ns/mnt'):
    print(attempt(os.readlink, f'/proc/1/{name}'))
print(attempt(os.listdir, '/proc/1/fd'))
"""
    assert set(await attack(spawner, code)) <= {"EACCES", "EPERM"}


async def test_pid_1_cannot_be_stopped_or_killed_from_inside(spawner: Spawner) -> None:
    code = """
import signal, time
for number in (9, 19, 15, 1): attempt(os.kill, 1, number)
print(attempt(os.kill, 1, signal.SIGRTMIN + 1))
time.sleep(0.2)
print(open('/proc/1/stat').read().split()[2] in 'RS')
"""
    assert await attack(spawner, code) == ["EPERM", "True"]


async def test_secrets_of_the_kernels_environment_stay_out(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = secrets.token_hex(16)
    monkeypatch.setenv("API_KEY", secret)
    fresh = start_spawner()
    try:
        ended = await run(
            fresh, a_plan("/bin/sh", "-c", "cat /proc/*/environ /proc/*/cmdline /proc/self/mountinfo; env")
        )
    finally:
        fresh.close()
    assert "HOME=/workspace" in ended.out
    assert secret not in ended.out


async def test_no_descriptor_of_the_hosts_is_open(spawner: Spawner, secret: Path) -> None:
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)
        fresh = start_spawner()
        try:
            found = await attack(fresh, "print(*sorted(os.listdir('/proc/self/fd'), key=int))")
        finally:
            fresh.close()
    assert found == ["0 1 2 3"], "3 is the listing's own"


async def test_all_namespaces_are_other_than_the_hosts(spawner: Spawner) -> None:
    ours = {
        name: os.readlink(f"/proc/self/ns/{name}") for name in ("user", "pid", "mnt", "net", "uts", "ipc", "cgroup")
    }
    code = "[print(name, os.readlink(f'/proc/self/ns/{name}')) for name in sys.argv[1:]]"

    theirs = dict(row.split() for row in await attack(spawner, code, *ours))

    assert theirs.keys() == ours.keys()
    assert not [name for name in ours if ours[name] == theirs[name]]


async def test_no_capability_is_left_and_none_can_be_had(spawner: Spawner) -> None:
    code = """
wanted = ('Cap', 'NoNew', 'Seccomp:')
rows = dict(row.split(':\\t') for row in open('/proc/self/status').read().splitlines() if row.startswith(wanted))
print({rows[name] for name in rows if name.startswith('Cap')} == {'0' * 16}, rows['NoNewPrivs'], rows['Seccomp'])
print(call('prctl', 28, 0, 0, 0, 0), call('prctl', 8, 1, 0, 0, 0))
print(attempt(os.setuid, 0), attempt(os.setgroups, [0]), attempt(os.chroot, '/tmp'))
"""
    assert await attack(spawner, code) == ["True 1 2", "EPERM EPERM", "EINVAL EPERM EPERM"]


async def test_no_namespace_is_made_inside(spawner: Spawner) -> None:
    code = """
for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x4000000, 0x8000000, 0x2000000):
    print(call('unshare', flag))
print(call('syscall', 56, 0x10000000 | 17, 0, 0, 0, 0))
"""
    code = code if os.uname().machine == "x86_64" else code.rsplit("print", 1)[0]
    assert set(await attack(spawner, code)) == {"EPERM"}


async def test_a_namespace_is_refused_even_without_the_filter(spawner: Spawner) -> None:
    steps = python(PRELUDE + "print(call('unshare', 0x10000000))")

    ended = await run(spawner, [step for step in steps if type(step).__name__ != "Seccomp"])

    assert ended.out == "ENOSPC\n", "max_user_namespaces is 0 inside: a second wall"


async def test_a_setuid_program_keeps_its_callers_identity(spawner: Spawner) -> None:
    program = next(path for path in ("/usr/bin/passwd", "/usr/bin/su", "/usr/bin/mount") if os.path.exists(path))
    assert os.stat(program).st_mode & 0o4000
    code = """
pid = os.fork()
if pid == 0:
    out = os.open('/dev/null', os.O_WRONLY); os.dup2(out, 1); os.dup2(out, 2)
    os.execv(sys.argv[1], [sys.argv[1], '--help'])
os.waitpid(pid, 0)
print(os.statvfs(sys.argv[1]).f_flag & os.ST_NOSUID != 0)
"""
    assert await attack(spawner, code, program) == ["True"]


@pytest.mark.parametrize(
    "name", ["kernel/core_pattern", "kernel/modprobe", "vm/overcommit_memory", "user/max_user_namespaces"]
)
async def test_no_setting_of_the_kernels_is_there(spawner: Spawner, name: str) -> None:
    code = "print(attempt(open, '/proc/sys/' + sys.argv[1], 'r+'), attempt(open, '/proc/sysrq-trigger', 'w'))"
    assert await attack(spawner, code, name) == ["ENOENT ENOENT"]


async def test_only_five_devices_are_there(spawner: Spawner) -> None:
    code = """
import stat
os.chdir('/dev')
modes = {name: os.stat(name).st_mode for name in os.listdir('.') if not os.path.islink(name)}
print(*sorted(name for name, mode in modes.items() if stat.S_ISCHR(mode) or stat.S_ISBLK(mode)))
made = attempt(os.mknod, '/tmp/disk', stat.S_IFBLK | 0o600, os.makedev(254, 0))
print(made in ('EPERM', 'EACCES'), attempt(open, '/dev/tty'))
print(len(open('/dev/urandom', 'rb').read(8)), open('/dev/null', 'w').write('gone'))
"""
    assert await attack(spawner, code) == [
        "full null random urandom zero",
        "True ENOENT",
        "8 4",
    ]


async def test_a_socket_of_the_hosts_is_not_reached(spawner: Spawner) -> None:
    code = """
for address in (sys.argv[1], '\\0' + sys.argv[2]):
    print(attempt(socket.socket(socket.AF_UNIX).connect, address))
print(attempt(socket.create_connection, ('127.0.0.1', int(sys.argv[3]))))
"""
    with (
        tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as place,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.create_server(("127.0.0.1", 0)) as tcp,
    ):
        os.chmod(place, 0o755)
        named.bind(f"{place}/s")
        os.chmod(f"{place}/s", 0o666)
        abstract.bind("\0" + place)
        named.listen()
        abstract.listen()
        port = str(tcp.getsockname()[1])

        found = await attack(spawner, code, f"{place}/s", place, port)

    assert found[0] == "ENOENT"
    assert found[1] in ("ECONNREFUSED", "EPERM")
    assert found[2] == "ECONNREFUSED"


@pytest.mark.parametrize("address", ["169.254.169.254", "1.1.1.1", "10.0.0.1", "192.168.0.1"])
async def test_there_is_no_route_to_anywhere(spawner: Spawner, address: str) -> None:
    code = "print(attempt(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect, (sys.argv[1], 53)))"
    assert await attack(spawner, code, address) == ["ENETUNREACH"]


async def test_no_raw_packet_odd_or_hypervisor_socket_is_made(spawner: Spawner) -> None:
    code = """
for family, kind, protocol in ((2, 3, 1), (17, 3, 0), (16, 3, 0), (40, 1, 0), (38, 5, 0), (44, 3, 0), (2, 1, 132)):
    print(call('socket', family, kind, protocol))
"""
    found = await attack(spawner, code)
    assert set(found) <= {"EPERM", "EAFNOSUPPORT", "EINVAL", "EPROTONOSUPPORT", "EACCES"}


@x86_only
async def test_the_kernels_risky_calls_are_refused(spawner: Spawner) -> None:
    code = "[print(name, call('syscall', number, 0, 0, 0, 0, 0, 0)) for name, number in SYS.items()]"

    found = dict(row.split() for row in await attack(spawner, code))

    assert found.pop("clone3") == "ENOSYS"
    assert set(found.values()) == {"EPERM"}


@pytest.mark.parametrize("request_", [0x5412, 0x541C, 0x5423])
async def test_a_terminal_is_not_typed_into(spawner: Spawner, request_: int) -> None:
    master, slave = os.openpty()
    try:
        code = "print(call('ioctl', 0, int(sys.argv[1]), b'x'), os.isatty(0), attempt(os.open, '/dev/tty', 0))"
        assert await attack(spawner, code, str(request_)) == ["EPERM False ENOENT"]
    finally:
        os.close(master)
        os.close(slave)


async def test_a_shared_memory_segment_of_the_hosts_is_not_there(spawner: Spawner) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    key = secrets.randbelow(1 << 30) + 1
    segment = libc.shmget(key, 4096, 0o1666)
    assert segment >= 0
    try:
        [found] = await attack(spawner, "print(call('shmget', int(sys.argv[1]), 4096, 0))", str(key))
        assert found in ("ENOENT", "ENOSYS")  # refused altogether, where no control group counts its memory
    finally:
        libc.shmctl(segment, 0, None)


async def test_an_abstract_name_of_another_programs_is_free(spawner: Spawner) -> None:
    holder = await spawner.spawn(
        python("import socket, time; s = socket.socket(1); s.bind('\\0name'); print(1, flush=True); time.sleep(600)")
    )
    await line(holder)

    assert await attack(spawner, "print(attempt(socket.socket(1).bind, '\\0name'))") == ["None"]
    await kill(holder)


async def test_strict_runs_nothing_that_was_written(spawner: Spawner) -> None:
    code = """
import shutil
shutil.copy('/bin/true', '/tmp/mine')
os.chmod('/tmp/mine', 0o755)
try: print(os.posix_spawn('/tmp/mine', ['mine'], {}) > 0)
except OSError as error: print(errno.errorcode[error.errno])
"""
    assert await attack(spawner, code) == ["True"]
    assert await attack(spawner, code, profile="strict") == ["EACCES"]


async def test_with_root_its_uid_is_unknown_to_the_host_and_without_root_it_is_the_users(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(python("import time; print(1, flush=True); time.sleep(600)"))
    await line(sandbox)
    uids = set(sandbox.observed.status["Uid"].split())

    assert uids == {str(os.geteuid())} if os.geteuid() else all(int(uid) >= 1610612736 for uid in uids)
    assert {Path(f"/proc/{sandbox.program}").stat().st_uid} == {int(uid) for uid in uids}
    with trio.fail_after(PATIENCE):
        await kill(sandbox)
