"""A host with something missing, for one command: ``python -m tests.tools.crippled --hide /sys/fs/cgroup -- COMMAND``.

What is taken away is taken from this process alone, in namespaces of its own and by a seccomp filter, as a container or
an administrator would; then the command takes its place. An ordinary user remains who he was, and so does root.
"""

import argparse
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from agentos.sandbox import plan as p
from agentos.sandbox.filters import profile
from agentos.sandbox.filters.profile import AnyBit, Profile, Refusal, Rule
from agentos.sandbox.inside import identity, libc
from agentos.sandbox.steps import Clone
from tests.support.wire import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
BIND, PRIVATE, READ_ONLY = 0x1000, 0x4000 | 1 << 18, 1
ALL_IDS = "0 0 4294967295"
NAMESPACES = p.NEWNS | p.NEWCGROUP | p.NEWUTS | p.NEWIPC | p.NEWUSER | p.NEWPID | p.NEWNET


def run(*options: str, command: list[str], env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """The command on such a host."""
    return subprocess.run(
        [sys.executable, "-m", "tests.tools.crippled", *options, "--", *command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def own_namespaces(few_ids: bool) -> None:
    """Of users and mounts, in which we stay who we are. Its maps are written by a child that stays outside."""
    uid, gid = os.geteuid(), os.getegid()
    maps = (ALL_IDS, ALL_IDS) if uid == 0 and not few_ids else (f"{uid} {uid} 1", f"{gid} {gid} 1")
    wait, go = os.pipe()
    me = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(wait, 1)
        identity.write_maps(me, Clone(0, *maps, deny_setgroups=uid != 0))
        os._exit(0)
    libc.unshare(p.NEWUSER | p.NEWNS)
    os.close(go)
    assert os.waitpid(child, 0)[1] == 0, "the id maps could not be written"
    os.close(wait)
    libc.mount("none", "/", None, PRIVATE)


def take_files(hidden: list[str], covered: list[str], replaced: list[str], read_only: list[str]) -> None:
    for path in hidden:
        libc.mount("none", path, "tmpfs", READ_ONLY)
    for path in covered:
        libc.mount("/dev/null", path, None, BIND)
    for pair in replaced:
        path, _, other = pair.partition("=")
        libc.mount(other, path, None, BIND)
    for path in read_only:
        libc.mount(path, path, None, BIND)
        libc.set_mount_attributes(libc.AT_FDCWD, path, READ_ONLY, recursive=False)


def refuse(calls: list[str], namespaces: bool) -> None:
    rules: dict[str, Rule] = {}
    for call in calls:
        name, _, error = call.partition("=")
        rules[name] = profile.errno_verdict(getattr(errno, error))
    if namespaces:
        rules["clone"] = (Refusal(errno.EPERM, (AnyBit(0, NAMESPACES),)),)
    program = profile.compile_filter(Profile("outer", rules, profile.ALLOW), os.uname().machine)
    libc.set_seccomp_filter(b"".join(instruction.pack() for instruction in program))


def take_away(options: Sequence[str]) -> list[str]:
    """Do to this process what options say; returns the words after them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hide", action="append", default=[], metavar="DIR", help="nothing is in it")
    parser.add_argument("--cover", action="append", default=[], metavar="FILE", help="/dev/null lies over it")
    parser.add_argument("--replace", action="append", default=[], metavar="FILE=OTHER", help="the other lies over it")
    parser.add_argument("--read-only", action="append", default=[], metavar="DIR")
    parser.add_argument("--sysctl", action="append", default=[], metavar="NAME=VALUE", help="of our user namespace")
    parser.add_argument("--refuse", action="append", default=[], metavar="CALL=ERROR", help="by a seccomp filter")
    parser.add_argument("--refuse-namespaces", action="store_true", help="likewise, clone with any CLONE_NEW*")
    parser.add_argument("--few-ids", action="store_true", help="our user namespace has our own uid alone")
    parser.add_argument("--no-new-privileges", action="store_true")
    parser.add_argument("--processes", type=int, metavar="N", help="RLIMIT_NPROC")
    parser.add_argument("command", nargs="*")
    args = parser.parse_args(options)
    own_namespaces(args.few_ids)
    take_files(args.hide, args.cover, args.replace, args.read_only)
    for setting in args.sysctl:
        name, _, value = setting.partition("=")
        Path("/proc/sys", *name.split(".")).write_text(value)
    if args.no_new_privileges:
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    if args.processes is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (args.processes, args.processes))
    if args.refuse or args.refuse_namespaces:
        refuse(args.refuse, args.refuse_namespaces)
    return list(args.command)


if __name__ == "__main__":
    program = take_away(sys.argv[1:])
    os.execvp(program[0], program)
