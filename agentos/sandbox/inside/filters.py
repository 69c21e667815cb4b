"""Install no_new_privs, Landlock rulesets and seccomp filters, as the plan has packed them."""

import os

from agentos.sandbox import steps as s

from . import libc


def no_new_privileges(_: s.NoNewPrivileges) -> None:
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)


def landlock(step: s.Landlock) -> None:
    ruleset = libc.landlock_create(bytes.fromhex(step.attributes))
    try:
        for path, rights in step.paths:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                libc.landlock_add_path(ruleset, rights, fd)
            finally:
                os.close(fd)
        libc.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)


def seccomp(step: s.Seccomp) -> None:
    libc.set_seccomp_filter(bytes.fromhex(step.program))
