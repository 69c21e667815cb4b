"""What root inside an image must not get: the host, its ids and limits, the store, PID 1, or more capabilities."""

import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent

import pytest
from msgspec.structs import replace

from agentos.sandbox.errors import StepFailed
from agentos.sandbox.files.sub_ids import read_sub_ids
from agentos.sandbox.host_ids import STORE_IDS, TRIAL_BLOCK, first_of_block
from agentos.sandbox.plan import plan_sandbox
from agentos.sandbox.policy import Directory, Overlay, Policy, Program, RootImage
from agentos.sandbox.report import probe
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import INSIDE_ROOT, Step
from agentos_attacks.canaries import plant_canaries
from agentos_attacks.harness import ATTACKER, CHECK_SECONDS, PROGRAM
from tests.sandbox import jail
from tests.sandbox.attacks import test_image_attacks as plain

IS_ROOT = os.geteuid() == 0
HAS_BLOCK = IS_ROOT or read_sub_ids(os.geteuid()) is not None
NO_BLOCK = f"no block of ids for uid {os.geteuid()}: newuidmap or a range in /etc/subuid is missing"
by_ids = pytest.mark.parametrize(  # pretended: what takes other ids than the only one succeeds and does nothing
    "pretended",
    [
        pytest.param(False, marks=pytest.mark.skipif(not HAS_BLOCK, reason=NO_BLOCK), id="a block of ids"),
        pytest.param(True, marks=pytest.mark.skipif(IS_ROOT, reason="root has blocks"), id="one id"),
    ],
)
ALLOWED = {  # what a user of an image may not, and its root may: it stays in its own root
    *("make a set-id file", "make a set-group-id directory", "create a set-id file", "give a file capabilities"),
    *("give a file away", "become root", "become another", "become a line of passwd", "a set-id program of the image"),
    *("make a directory at the top", "put a link at the top"),
    "make a file beside devices",
    "the host's paths",  # that of the code is in mountinfo
}
ROOT_PRELUDE = r"""
import errno, fcntl, resource, signal, socket
def status(name, path='/proc/self/status'):
    return next(line.split()[1] for line in open(path) if line.startswith(name))
def as_bob(argv):
    return subprocess.check_output(argv, user=1001, group=1001, extra_groups=[])
"""
ATTACKS: Mapping[str, str] = {
    **{name: attack for name, attack in plain.ATTACKS.items() if name not in ALLOWED},
    # Capabilities.
    "raise all capabilities": "call('capset', struct.pack('Ii', 0x20080522, 0),"
    " struct.pack('6I', *[0xffffffff] * 6)); expect(status('CapEff') != '00000000800000fb')",
    "more capabilities by an exec": "out = subprocess.check_output(['/bin/cat', '/proc/self/status']).decode()"
    "; expect('CapEff:\\t00000000800000fb' not in out)",
    "an ambient capability": "call('prctl', 47, 2, 0, 0, 0)",
    "other securebits": "call('prctl', 28, 0x10, 0, 0, 0)",
    "capabilities back after another id": "expect(b'CapEff:\\t0000000000000000' not in"
    " as_bob(['/bin/cat', '/proc/self/status']))",
    "a set-uid program for another user": "os.chmod('/bin/setid', 0o6755)"
    "; expect(as_bob(['/bin/setid', '-u']) != b'1001\\n')",
    "a file capability for another user": "os.setxattr('/bin/cat', 'security.capability', CAPABLE)"
    "; expect(b'CapEff:\\t0000000000000000' not in as_bob(['/bin/cat', '/proc/self/status']))",
    "a file capability of the host's root": "os.setxattr(made('/srv/v3'), 'security.capability',"
    " struct.pack('<6I', 0x3000001, 0xffffffff, 0, 0, 0, 0)); expect(len(os.getxattr('/srv/v3',"
    " 'security.capability')) != 20)",  # 20 bytes are one of its own root's
    "another security attribute": "os.setxattr(made('/srv/label'), 'security.ima', b'x')",
    # Ids.
    "an id outside the block": "os.setuid(65537); expect(os.getuid() == 65537)",
    "a group outside the block": "os.setgroups([70000]); expect(70000 in os.getgroups())",
    "an owner outside the block": "os.chown(made('/srv/o'), 1610612736, -1); expect(os.stat('/srv/o').st_uid)",
    "another map": "write('/proc/self/uid_map', '0 0 1')",
    "the map of PID 1": "write('/proc/1/uid_map', '0 0 1')",
    # Files of the host's.
    "the mode of a device": "os.chmod('/dev/null', 0o777)",
    "the owner of a device": "os.chown('/dev/null', 0, 0); expect(os.stat('/dev/null').st_uid == 0)",
    "the time of a device": "os.utime('/dev/zero', (1, 1))",
    "a set-id file of the code": "os.chmod('/agent/theirs', 0o4755)",
    "the owner of the code": "os.chown('/agent/theirs', 33, 33); expect(os.stat('/agent/theirs').st_uid == 33)",
    "an attribute of the code": "os.setxattr('/agent/theirs', 'security.capability', CAPABLE)",
    "closed files of the code": "open('/agent/closed').read()",
    "a set-id file of the SDK": "os.chmod('/sdk/agentos_sdk/__init__.py', 0o4755)",
    "a flag of a file": "fd = os.open(made('/workspace/f'), os.O_RDONLY)"
    "; fcntl.ioctl(fd, 0x40086602, struct.pack('l', 0x10))",
    "a link to the code": "os.link('/agent/theirs', '/srv/linked')",
    # Linux's settings and the machine.
    "sysctls": "os.listdir('/proc/sys')",
    "sysrq": "write('/proc/sysrq-trigger', 'h')",
    "sysfs": "os.listdir('/sys/kernel')",
    "mount sysfs": "os.makedirs('/s', exist_ok=True); call('mount', b'x', b'/s', b'sysfs', 0, None)",
    "mount proc": "os.makedirs('/p', exist_ok=True); call('mount', b'x', b'/p', b'proc', 0, None)",
    "mount cgroups": "os.makedirs('/c', exist_ok=True); call('mount', b'x', b'/c', b'cgroup2', 0, None)",
    "leave the control group": "write('/sys/fs/cgroup/cgroup.procs', '0')",
    "load a module": "syscall(175, b'', 0, b'')",
    "load a module by a file": "syscall(313, 0, b'', 0)",
    "remove a module": "syscall(176, b'x', 0)",
    "another kernel": "syscall(246, 0, 0, None, 0)",
    "reboot": "syscall(169, 0xfee1dead, 672274793, 0, None)",
    "swap": "syscall(167, b'/srv/name', 0)",
    "account processes": "syscall(163, b'/srv/name')",
    "quotas": "syscall(179, 0x80000700, b'/dev/null', 0, 0)",
    "set the time": "import time; time.clock_settime(time.CLOCK_REALTIME, time.time())",
    "set the host name": "socket.sethostname('other')",
    "ports of the machine": "syscall(172, 3)",
    "the kernel's log": "syscall(103, 3, b' ' * 100, 100)",
    # Large parts of Linux.
    "bpf": "syscall(321, 0, bytes(72), 72)",
    "perf events": "syscall(298, bytes(112), 0, -1, -1, 0)",
    "io_uring": "syscall(425, 8, bytes(120))",
    "userfaultfd": "syscall(323, 1)",
    "keys": "syscall(250, 0, -3, 0)",
    "add a key": "syscall(248, b'user', b'x', b'y', 1, -3)",
    "fanotify": "syscall(300, 0, 0)",
    "inotify, counted for the host's root": "syscall(294, 0)",
    # Processes.
    "trace PID 1": "syscall(101, 16, 1, 0, 0)",
    "trace its own child": "syscall(101, 0x4206, os.getpid(), 0, 0)",
    "the memory of PID 1": "open('/proc/1/mem', 'rb').read(1)",
    "the files of PID 1": "os.listdir('/proc/1/fd')",
    "the environment of PID 1": "open('/proc/1/environ', 'rb').read(); expect(open('/proc/1/environ', 'rb').read())",
    "a file of PID 1 by a pidfd": "syscall(438, os.pidfd_open(1), 0, 0)",
    "a real-time signal to PID 1": "os.kill(1, signal.SIGRTMIN + 1)",
    "the namespaces of PID 1": "os.open('/proc/1/ns/mnt', os.O_RDONLY)",
    "a higher priority": "os.setpriority(os.PRIO_PROCESS, 0, -10)",
    "a real-time scheduler": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "more files than its limit": "resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 16, 1 << 16))",
    "spared when memory is short": "write('/proc/self/oom_score_adj', '-900')",
    # Network.
    "a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
    "a packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "a netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "set the network": "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH14x', b'lo', 0))",
    "another network": "call('unshare', 0x40000000)",
    "a port of the system's": "socket.socket().bind(('127.0.0.1', 80))",
}  # fmt: skip
STORE = (STORE_IDS[0], STORE_IDS[0])
CLOSED = "closed files of the code"  # without root they are the kernel's user's, and so its own
WITH_A_BLOCK = {  # with one id other users aren't become
    *("capabilities back after another id", "a set-uid program for another user"),
    *("a file capability for another user", "inotify, counted for the host's root"),
}
LOOSE = {  # checks of all sandboxes that ask for what root inside has, of its own ids and files: in full
    *("file.write_outside_workspace", "file.setuid_file", "file.file_capabilities: security.capability: set"),
    f"priv.host_capabilities: {dict.fromkeys(('CapPrm', 'CapEff', 'CapBnd'), f'{INSIDE_ROOT:016x}')}",
}


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/var/tmp") as made:
        place = plain.make_store(Path(made))
        (place / "code").mkdir()
        for name, mode in (("theirs", 0o755), ("closed", 0o600)):
            (place / "code" / name).write_text("#!/bin/sh\n")
            (place / "code" / name).chmod(mode)
        if IS_ROOT:
            os.chown(place / "code" / "closed", 12345, 12345)
        yield place


def plan(
    store: Path,
    code: Path,
    *arguments: str,
    pretended: bool = False,
    number: int = TRIAL_BLOCK,
    workspace: Overlay | Directory | None = None,
) -> tuple[Step, ...]:
    root = store / "root"
    names = tuple(name for name in plain.DIRECTORIES if (root / name).is_dir())
    image = RootImage(str(root), names, (), (("PATH", "/usr/local/bin:/bin"),))
    host = replace(probe.read_host(), memory_cgroup=not pretended, pids_cgroup=not pretended)
    ids = first_of_block(number) if IS_ROOT else None
    policy = Policy(sdk=jail.SDK, code=str(code), image=image, inside_root=True, workspace=workspace)
    return plan_sandbox(policy, Program((plain.PYTHON, "-I", "-S", *arguments)), host, ids)


@by_ids
async def test_no_attack_of_root_inside_succeeds(spawner: Spawner, store: Path, pretended: bool) -> None:
    before, code = look(store), plain.PRELUDE + ROOT_PRELUDE + f"PLACE = {str(store)!r}\n"
    for name, attack in ATTACKS.items():
        if (pretended and name in WITH_A_BLOCK) or (not IS_ROOT and name == CLOSED):
            continue
        lines = "\n".join(attack.split("; "))
        code += f"try:\n{indent(lines, '    ')}\n    print({name!r})\n"
        code += "except (OSError, ValueError, subprocess.SubprocessError): pass\n"

    steps = plan(store, store / "code", "-c", code + "print('done')", pretended=pretended)
    ended = await jail.run(spawner, steps)

    assert (ended.err, ended.out.splitlines()) == ("", ["done"])
    assert look(store) == before


@by_ids
async def test_no_attack_on_the_walls_by_root_inside_succeeds(spawner: Spawner, store: Path, pretended: bool) -> None:
    walls = f"priv.loosen_walls: setuid 0: done; setgroups: done{'; capset: 0' if pretended else ''}"
    before, allowed = look(store), plain.OUTSIDE | plain.WRITES | LOOSE | {walls}
    with plant_canaries() as canaries:
        task = {"checks": plain.WALLS, "targets": {**canaries.targets, "limits": {}}, "seconds": CHECK_SECONDS}
        steps = plan(store, ATTACKER, f"/agent/{PROGRAM}", json.dumps(task), pretended=pretended)
        ended = await jail.run(spawner, steps)

    found = {one["check"]: one for one in map(json.loads, ended.out.splitlines())}
    assert [*found] == plain.WALLS, ended.err
    details = {name: f"{name}: {one['detail']}" for name, one in found.items()}
    held = {name for name, one in found.items() if one["outcome"] in ("blocked", "n/a")}
    escaped = [details[name] for name in found if not {name, details[name]} & allowed and name not in held]
    assert not escaped, "\n".join(escaped)
    assert look(store) == before


@by_ids
async def test_what_root_inside_may_do_leaves_nothing_on_the_host(
    spawner: Spawner, store: Path, pretended: bool
) -> None:
    before, code = look(store), plain.PRELUDE + f"PLACE = {str(store)!r}\n"
    for name in sorted(
        ALLOWED - {"a set-id program of the image", "replace a directory at the top", "the host's paths"}
    ):
        lines = "\n".join(plain.ATTACKS[name].split("; "))
        code += f"if not os.fork():\n{indent(lines, '    ')}\n    os._exit(0)\n"
        code += f"if os.wait()[1]: print({name!r})\n"

    ended = await jail.run(spawner, plan(store, store / "code", "-c", code + "print('done')"))

    assert (ended.err, ended.out.splitlines()) == ("", ["done"])
    assert look(store) == before


@pytest.mark.skipif(not IS_ROOT, reason="without root all files of the store are the kernel's user's")
async def test_files_in_the_store_have_ids_of_no_process_and_a_fork_sees_their_owners(
    spawner: Spawner, store: Path
) -> None:
    layers = [store / "upper", store / "fork"]
    make = "import os; w = os.open('/workspace/f', os.O_CREAT | os.O_WRONLY); os.write(w, b'x')"
    make += "; os.setxattr('/workspace/f', 'security.capability', bytes.fromhex('0100000220000000' + '00' * 12))"
    make += "; os.chown('/workspace/theirs', 33, 42); os.chmod('/workspace/theirs', 0o6755); os.mkdir('/workspace/d')"
    make += "; os.chown('/workspace/d', 65536, 65536)"  # PID 1's ids
    shown = "import os; one = os.stat('/workspace/theirs'); print(one.st_uid, one.st_gid, oct(one.st_mode))"
    shown += "; print(len(os.getxattr('/workspace/f', 'security.capability')), os.stat('/workspace/f').st_uid)"
    shown += "; print(os.stat('/workspace/d').st_uid)"
    for layer in layers:
        (layer / "tree").mkdir(parents=True)
        (layer / "work").mkdir()
        for path in (layer, layer / "tree", layer / "work"):
            os.chown(path, *STORE)
    first = plan(store, store / "code", "-c", make, workspace=Overlay(str(store / "code"), str(layers[0])))
    sealed = (str(layers[0] / "tree"),)
    overlay = Overlay(str(store / "code"), str(layers[1]), sealed)
    fork = plan(store, store / "code", "-c", shown, number=TRIAL_BLOCK - 1, workspace=overlay)
    hosts = Overlay(str(store / "code"), str(store / "hosts"))

    made, seen = await jail.run(spawner, first), await jail.run(spawner, fork)

    (store / "hosts").mkdir()
    with pytest.raises(StepFailed, match="would have ids of the host's there"):
        await spawner.spawn(plan(store, store / "code", "-c", make, workspace=hosts))
    assert (made.err, seen.err, seen.out.split()) == ("", "", ["33", "42", "0o106755", "20", "0", "65536"])
    owners = {path.name: path.lstat()[4:6] for path in (layers[0] / "tree").iterdir()}
    assert owners == {"f": STORE, "d": (STORE[0] + 65536, STORE[0] + 65536), "theirs": (STORE[0] + 33, STORE[0] + 42)}
    assert (store / "code" / "theirs").stat().st_mode & 0o7777 == 0o755


@pytest.mark.skipif(not IS_ROOT, reason="without root all files of the store are the kernel's user's")
async def test_set_id_files_in_a_kept_directory_have_ids_of_no_process(spawner: Spawner, store: Path) -> None:
    kept = store / "kept"
    kept.mkdir(mode=0o700)
    os.chown(kept, *STORE)
    make = "import os; os.chmod(os.open('/workspace/f', os.O_CREAT), 0o6755); os.chown('/workspace', 33, 33)"
    make += "; os.makedirs('/workspace/d', exist_ok=True); os.chmod('/workspace/d', 0o2777)"
    make += "; print(os.stat('/workspace').st_uid, os.stat('/workspace/f').st_uid)"
    steps = plan(store, store / "code", "-c", make, workspace=Directory(str(kept), kept=True))

    first, second = await jail.run(spawner, steps), await jail.run(spawner, steps)

    assert (first.err, first.out, second.err, second.out) == ("", "33 0\n", "", "33 0\n")
    found = {path.name: (path.stat()[4:6], path.stat().st_mode & 0o7777) for path in (kept, *kept.iterdir())}
    other = (STORE[0] + 33, STORE[0] + 33)
    assert found == {"kept": (other, 0o700), "f": (STORE, 0o6755), "d": (STORE, 0o2777)}
    os.chown(kept, 0, 0)
    with pytest.raises(StepFailed, match="would have ids of the host's there"):
        await spawner.spawn(steps)


def look(store: Path) -> dict[str, tuple[int, ...]]:
    found = {str(path): path.lstat() for path in store.rglob("*")}
    return {path: (one.st_mode, one.st_uid, one.st_gid, one.st_size, one.st_mtime_ns) for path, one in found.items()}


def test_the_image_has_a_set_id_file_and_a_device_to_attack(store: Path) -> None:
    assert (store / "root" / "bin" / "setid").stat().st_mode & stat.S_ISUID
    assert not IS_ROOT or stat.S_ISCHR((store / "root" / "srv" / "device").stat().st_mode)
