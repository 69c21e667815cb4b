"""Commands for a program of the host's that reads what an agent has made, so that a fault in it gains little.

No jail: the program needs some of the host's files, and is gone in milliseconds. It can start no other program, open no
socket, see no files but those named and the system's programs, and write none. With root it runs as another user,
which may read but not write everything. Its memory and what it writes to its output are limited.
"""

import errno
import functools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from agentos.sandbox.filters import bpf, landlock, profile, seccomp
from agentos.sandbox.filters.landlock import FileRights, HandledRights, PathRule
from agentos.sandbox.inside.programs import confined

NOBODY = 65534
CLONE_THREAD = 0x1_0000
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/usr/local")
_DENIED = profile.errno_verdict(errno.EPERM)
_PROFILE = profile.Profile(
    "confined",
    {
        **seccomp.PROFILES["standard"].rules,
        **dict.fromkeys(("fork", "vfork", "kill", "tkill", "tgkill", "ptrace", "chown", "fchown", "lchown"), _DENIED),
        **dict.fromkeys(("fchownat", "chmod", "fchmod", "fchmodat", "setxattr", "lsetxattr", "fsetxattr"), _DENIED),
        "clone": (profile.Refusal(errno.EPERM, (profile.NoBit(0, CLONE_THREAD),)),),  # its threads are allowed
        "clone3": profile.errno_verdict(errno.ENOSYS),  # its flags are in memory; the C library then calls clone
        "socket": profile.errno_verdict(errno.EACCES),
    },
    profile.ALLOW,
)


class Unconfinable(Exception):
    """This host can't confine a program; the text says why."""


def confine(
    argv: Sequence[str], memory: int, output: int, reads: Sequence[str] | None = None, uid: int | None = None
) -> list[str]:
    """The command that runs ``argv``, whose first word is an absolute path, within these bounds.

    ``memory`` in bytes, ``output`` in bytes of a file. ``reads`` are the files and directories that it may read besides
    programs and libraries, where this Linux has Landlock; None: all files, and it may write. ``uid``: with root, the
    user that it runs as. Raises :class:`Unconfinable`.
    """
    plan = {
        "root": str(Path(__file__).parents[2]),
        "argv": [*argv],
        "limits": {"DATA": memory, "FSIZE": output, "CORE": 0},
        "landlock": _plan_landlock(argv[0], reads) if reads is not None else None,
        "seccomp": _filter().hex(),
        "uid": uid if os.geteuid() == 0 else None,
    }
    return [sys.executable, "-I", "-S", confined.__file__, json.dumps(plan)]


@functools.cache
def _filter() -> bytes:
    machine = os.uname().machine
    if machine not in profile.ARCHITECTURES:
        raise Unconfinable(f"on {machine} a program can't be kept from starting others")
    return bpf.pack(profile.compile_filter(_PROFILE, machine))


def _plan_landlock(program: str, reads: Sequence[str]) -> "dict[str, object] | None":
    if (abi := landlock.probe_abi()) == 0:
        return None
    places = (*(path for path in _SYSTEM if os.path.exists(path)), os.path.dirname(os.path.realpath(program)))
    rules = [PathRule(path, landlock.READ | FileRights.EXECUTE, os.path.isdir(path)) for path in places]
    rules += [PathRule(path, landlock.READ, os.path.isdir(path)) for path in reads]
    rules.append(PathRule(os.devnull, FileRights.READ_FILE | FileRights.WRITE_FILE, directory=False))
    made = landlock.build_ruleset(abi, HandledRights(landlock.ALL_FILES), rules)
    paths = [(rule.path, int(rule.effective(made.walls))) for rule in made.paths]
    return {"attributes": made.pack().hex(), "paths": paths}
