"""Paths in READ and WRITE: resolves them on the host or in a jailed agent's own directories."""

import contextlib
import os
from collections.abc import Iterator
from functools import partial

from attrs import frozen

from agentos.agents.inherit import effective
from agentos.agents.jail.jail import Jail
from agentos.agents.jail.root_access import Ended, directory_of
from agentos.agents.registry import Agent, Registry
from agentos.kernel.caller import Caller
from agentos.sandbox.plan import CODE, WORKSPACE
from agentos.services.files.as_user import Identity
from agentos.services.files.resolve import PathRequest
from agentos_sdk.errors import BadRequest, PermissionDenied, Unavailable

OWN = (WORKSPACE, CODE)


@frozen
class PathResolver:
    """Resolves paths. The host's relative paths start at ``base``, and ``~`` is ``home``."""

    registry: Registry
    base: str
    home: str

    def path_request(self, caller: Caller, path: str) -> PathRequest:
        """Resolve a caller's path without file access; ``PermissionDenied`` if callers of its kind can't use it."""
        agent = self.registry.find(caller.id, None) if caller.kind == "agent" else None
        if path.startswith("~") and path != "~" and not path.startswith("~/"):
            raise BadRequest(f"path: {path}: ~ is the operator's home, no other; a file with this name is ./{path}")
        if agent is None or not agent.spec.jailed or path.startswith("~"):
            return self._host_path(caller, agent, path)
        steps = [step for step in path.split("/") if step not in ("", ".")]
        top, *rest = steps if path.startswith("/") and steps else [WORKSPACE[1:], *steps]
        if f"/{top}" in OWN:
            return _jail_path(agent, path, f"/{top}", rest)
        if top == "tmp":
            raise PermissionDenied(
                f"{path}: your /tmp is your programs' alone: put files into {WORKSPACE}, or use EXEC"
            )
        return self._host_path(caller, agent, path)

    def _host_path(self, caller: Caller, agent: Agent | None, path: str) -> PathRequest:
        whole = self.home + path[1:] if path.startswith("~") else os.path.join(self.base, path)
        jailed = agent is not None and agent.spec.jailed
        return PathRequest(
            given=path,
            name="/" + os.path.normpath(whole).lstrip("/"),
            path=whole,
            owner=identity_of(jail_of(agent)) if agent is not None and jailed else None,
            single_link=caller.kind != "operator",
            max_size=effective(agent.spec).file_size if agent is not None else None,
            hidden=OWN if jailed else (),
        )


def _jail_path(agent: Agent, path: str, top: str, rest: list[str]) -> PathRequest:
    jail = jail_of(agent)
    inside = os.path.normpath("/".join(["", *rest])).lstrip("/")
    return PathRequest(
        given=path,
        name=f"{top}/{inside}".rstrip("/"),
        path="/".join(rest) + ("/" if path.endswith("/") else "") if rest else ".",
        top=top,
        root=partial(_open_root, agent.name, jail, top),
        identity=identity_of(jail),
        max_size=effective(agent.spec).file_size,
    )


@contextlib.contextmanager
def _open_root(name: str, jail: Jail, top: str) -> Iterator[int]:
    try:
        with directory_of(jail.sandbox, top.lstrip("/")) as fd:
            yield fd
    except Ended:
        raise ended_error(name) from None


def jail_of(agent: Agent) -> Jail:
    """The agent's running jail. File access uses its uid and gid; without it we would act as the kernel itself."""
    if agent.jail is None:
        raise ended_error(agent.name)
    return agent.jail


def identity_of(jail: Jail) -> Identity | None:
    """The agent's uid and gid on the host; None if they are the kernel's own."""
    outer = jail.parts.outer
    return Identity(outer.uid, outer.gid) if outer is not None else None


def ended_error(name: str) -> Unavailable:
    return Unavailable(f"{name} has ended, and its files with it")
