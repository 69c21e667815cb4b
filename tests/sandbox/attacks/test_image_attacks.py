"""What an agent in an image must not get: the image's own files, another image, the host, or more rights."""

import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent

import pytest

from agentos.sandbox.policy import RootImage
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from agentos_attacks.canaries import plant_canaries
from agentos_attacks.harness import ACCEPTED_CHECKS, ATTACKER, CHECK_SECONDS, PROGRAM, SEPARATE_CHECKS
from agentos_attacks.inside.checks import BY_NAME
from tests.sandbox import jail
from tests.sandbox.jail import a_plan
from tests.support.images import add_python, make_root

WALLS = [
    name
    for name in BY_NAME
    if not name.startswith(("dos.", "strict.")) and name not in (*ACCEPTED_CHECKS, *SEPARATE_CHECKS)
]
OUTSIDE = {  # judged by what is left of them; all paths are those of its own /tmp and image
    *("file.persistence_in_workspace", "proc.daemon_outlives_sandbox", "file.plant_code_for_the_kernel"),
}
WRITES = {"file.write_system_dirs"}  # in the sandbox's own overlay, which goes with it
DIRECTORIES = ("bin", "etc", "lib", "lib64", "root", "run", "srv", "usr")
PYTHON = "/usr/local/bin/python3"

PRELUDE = r"""
import ctypes, os, stat, struct, subprocess
LIBC = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(LIBC, name)(*arguments) < 0: raise OSError(ctypes.get_errno(), name)
def syscall(number, *arguments):
    if LIBC.syscall(number, *arguments) < 0: raise OSError(ctypes.get_errno(), str(number))
def write(path, text='x'):
    with open(path, 'w') as file: file.write(text)
def expect(held):
    if not held: raise OSError(0, 'held')
CAPABLE = struct.pack('<5I', 0x2000001, 0xffffffff, 0, 0, 0)
def raised():
    program = subprocess.check_output(['/bin/setid', '-u']), subprocess.check_output(['/bin/setid', '-g'])
    return os.geteuid() == 0 or program != (b'1000\n', b'1000\n')
def made(path):
    write(path, '#!/bin/sh')
    return path
"""
ATTACKS: Mapping[str, str] = {  # each is to raise OSError; one that doesn't has succeeded
    "make the image writable": "call('mount', b'none', b'/', None, 32, None)",
    "unmount the image": "call('umount2', b'/', 2)",
    "unmount what covers a directory": "call('umount2', b'/dev/null', 2)",
    "mount over the image": "call('mount', b'x', b'/srv', b'tmpfs', 0, None)",
    "mount an overlay": "call('mount', b'x', b'/srv', b'overlay', 0, b'lowerdir=/:/etc')",
    "open a file system": "syscall(430, b'overlay', 0)",
    "clone the root mount": "syscall(428, -100, b'/', 1)",
    "change a mount": "syscall(442, -100, b'/', 0, struct.pack('QQQQ', 0, 1, 0, 0), 32)",
    "move a mount": "syscall(429, -100, b'/tmp', -100, b'/srv', 0)",
    "leave by chroot": "os.mkdir('/tmp/c'); os.chroot('/tmp/c')",
    "leave by pivot_root": "syscall(155, b'/tmp', b'/tmp')",
    "leave by a handle": "call('open_by_handle_at', -100, struct.pack('Ii', 8, 1) + bytes(8), 0)",
    "another mount namespace": "call('unshare', 0x20000)",
    "another user namespace": "call('unshare', 0x10000000)",
    "the former root by PID 1": "os.listdir('/proc/1/root/')",
    "the former root by its directory": "expect(os.path.samefile('/proc/1/cwd/', '/')); os.listdir('/proc/1/cwd/')",
    "above the root": "expect(not os.path.samefile('/..', '/'))",
    "the layers by name": "os.listdir('/own'); os.listdir('/image'); os.listdir('/upper')",
    "the stage of the layers": "expect({'own', 'image', 'upper'} & set(os.listdir('/run')))",
    "the host's system": "os.stat('/usr/bin/env')",
    "the host's paths": "expect('/var/tmp' in open('/proc/self/mountinfo').read())",
    "a second image": "os.listdir(PLACE + '/other'); os.listdir(PLACE)",
    "the image in the store": "os.listdir(PLACE + '/root')",
    "a set-id program of the image": "expect(raised())",
    "a device of the image": "open('/srv/device', 'rb').read(1); os.stat('/srv/device').st_rdev",
    "make a set-id file": "os.chmod(made('/srv/mine'), 0o4755)",
    "make a set-group-id directory": "os.mkdir('/srv/g'); os.chmod('/srv/g', 0o2777)",
    "create a set-id file": "os.close(os.open('/srv/two', os.O_CREAT | os.O_WRONLY, 0o4755))"
    "; expect(os.stat('/srv/two').st_mode & stat.S_ISUID)",
    "give a file capabilities": "os.setxattr(made('/srv/caps'), 'security.capability', CAPABLE)",
    "give a file away": "os.chown(made('/srv/given'), 0, 0)",
    "a whiteout": "os.mknod('/srv/white', stat.S_IFCHR, 0)",
    "a character device": "os.mknod('/srv/mem', stat.S_IFCHR | 0o666, os.makedev(1, 1))",
    "a block device": "os.mknod('/tmp/disk', stat.S_IFBLK | 0o666, os.makedev(8, 0))",
    "forge a layer": "os.setxattr('/srv', 'trusted.overlay.opaque', b'y')",
    "forge a link of layers": "os.setxattr('/srv', 'user.overlay.redirect', b'/etc')"
    "; expect('passwd' in os.listdir('/srv'))",
    "become root": "os.setuid(0)",
    "become another": "os.setresuid(1001, 1001, 1001)",
    "become a line of passwd": "write('/etc/passwd', 'agent:x:0:0::/:/bin/sh'); expect(raised())",
    "make a directory at the top": "os.mkdir('/made')",
    "replace a directory at the top": "os.rename('/srv', '/etc/srv')",
    "put a link at the top": "os.symlink('/proc', '/link')",
    "replace a device": "os.unlink('/dev/null')",
    "make a file beside devices": "write('/dev/made')",
    "replace the socket's directory": "os.rename('/run', '/srv/run')",
    "write to the SDK": "write('/sdk/agentos_sdk/__init__.py')",
    "write its code": "write('/agent/planted')",
    "write to the kernel's settings": "write('/proc/sys/kernel/core_pattern')",
    "write to another process's memory": "write('/proc/1/mem')",
    "link the image's file elsewhere": "os.link('/srv/name', '/workspace/name')",
    "keep a file of the image open for the host": "syscall(304, -100, struct.pack('Ii', 8, 1) + bytes(8), 0)",
}  # fmt: skip


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    """Two images' files: ``root`` with Python, a set-id program and (with root) a device, and ``other``."""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/var/tmp") as made:
        yield make_store(Path(made))


def make_store(place: Path) -> Path:
    for name in ("root", "other"):
        (place / name).mkdir()
    root = make_root(place / "root")
    add_python(root)
    (root / "bin" / "setid").write_bytes((root / "bin" / "id").read_bytes())
    os.chmod(root / "bin" / "setid", 0o6755)
    if os.geteuid() == 0:
        os.mknod(root / "srv" / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    return place


def plan(store: Path, *arguments: str, **policy: object) -> tuple[Step, ...]:
    root = store / "root"
    found = tuple(name for name in DIRECTORIES if (root / name).is_dir())
    image = RootImage(str(root), found, (), (("PATH", "/usr/local/bin:/bin"),))
    return a_plan(PYTHON, "-I", "-S", *arguments, image=image, **policy)  # type: ignore[arg-type]


def look(store: Path) -> dict[str, tuple[int, int, int]]:
    found = {str(path): path.lstat() for path in store.rglob("*")}
    return {path: (one.st_mode, one.st_size, one.st_mtime_ns) for path, one in found.items()}


@pytest.mark.parametrize("profile", ["standard", "strict"])
async def test_no_attack_on_an_image_succeeds(spawner: Spawner, store: Path, profile: str) -> None:
    before, code = look(store), PRELUDE + f"PLACE = {str(store)!r}\n"
    for name, attack in ATTACKS.items():
        lines = "\n".join(attack.split("; "))
        code += f"try:\n{indent(lines, '    ')}\n    print({name!r})\n"
        code += "except (OSError, subprocess.SubprocessError): pass\n"

    ended = await jail.run(spawner, plan(store, "-c", code + "print('done')", profile=profile))

    assert (ended.err, ended.out.splitlines()) == ("", ["done"])
    assert look(store) == before


@pytest.mark.parametrize("profile", ["standard", "strict"])
async def test_no_attack_on_the_walls_succeeds_in_an_image(spawner: Spawner, store: Path, profile: str) -> None:
    before, allowed = look(store), OUTSIDE if profile == "strict" else OUTSIDE | WRITES
    with plant_canaries() as canaries:
        task = {"checks": WALLS, "targets": {**canaries.targets, "limits": {}}, "seconds": CHECK_SECONDS}
        steps = plan(store, f"/agent/{PROGRAM}", json.dumps(task), code=str(ATTACKER), profile=profile)
        ended = await jail.run(spawner, steps)

    found = {one["check"]: one for one in map(json.loads, ended.out.splitlines())}
    assert [*found] == WALLS, ended.err
    held = {name for name, one in found.items() if one["outcome"] in ("blocked", "n/a")} | allowed
    escaped = {name: one["detail"] for name, one in found.items() if name not in held}
    assert not escaped, "\n".join(f"{name}: {detail}" for name, detail in escaped.items())
    assert look(store) == before
