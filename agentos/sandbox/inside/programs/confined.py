"""Confines itself as its argument says, and becomes the program that it names; see :mod:`agentos.sandbox.confined`."""

import json
import os
import resource
import signal
import sys
from typing import Any

_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2  # of linux/capability.h


def main(plan: dict[str, Any]) -> None:
    """Never returns."""
    from agentos.sandbox.inside import libc

    for name, most in plan["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    ruleset = -1
    if (wanted := plan["landlock"]) is not None:
        ruleset = libc.landlock_create(bytes.fromhex(wanted["attributes"]))
        for path, rights in wanted["paths"]:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            libc.landlock_add_path(ruleset, rights, fd)
            os.close(fd)
    readers = libc.list_permitted(_DAC_READ_SEARCH, _DAC_OVERRIDE)
    if plan["uid"] is not None and readers:  # else it could only read what all may
        libc.prctl(libc.PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(plan["uid"], plan["uid"], plan["uid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
        libc.keep_capability(readers[0])
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    if ruleset >= 0:
        libc.landlock_restrict(ruleset)
        os.close(ruleset)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    libc.set_seccomp_filter(bytes.fromhex(plan["seccomp"]))
    os.execv(plan["argv"][0], plan["argv"])


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.path.insert(0, given["root"])
    try:
        main(given)
    except OSError as error:
        sys.exit(f"can't be confined: {error}")
