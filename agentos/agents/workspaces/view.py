"""Views: which names of files lead to which directories, for one caller, and with which identity files are accessed."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from agentos.agents.inherit import effective
from agentos.agents.jail.jail import Jail
from agentos.agents.jail.root_access import directory_of
from agentos.agents.spec import AgentSpec
from agentos.sandbox.files.root_files import CODE, WORKSPACE
from agentos.services.files.as_user import Identity
from agentos.services.files.resolve import PathRequest
from agentos_sdk.errors import BadRequest, PermissionDenied

Root = Callable[[], AbstractContextManager[int]]
"""Opens a directory (O_PATH). Blocks; raises a ``CallError`` if it is gone."""


class View(Struct, frozen=True):
    """The files that one caller can name.

    Relative paths on the host start at ``base``, and ``~`` is ``home``. In a jail ``roots`` are its own directories by
    their names there (``/workspace``), and relative paths start in the first one; ``refused`` are names that can't be
    used, with the reason. All other absolute paths are the host's. ``identity`` is the jail's uid and gid,
    ``None``: the kernel's own. ``max_size`` is the largest size in bytes that a file may get. With ``single_link``,
    files of the host that have a second hard link are refused.
    """

    base: str
    home: str
    roots: Mapping[str, Root] = {}
    refused: Mapping[str, str] = {}
    identity: Identity | None = None
    max_size: int | None = None
    single_link: bool = False

    def request(self, path: str) -> PathRequest:
        """The request to resolve a path, made without file access. Raises ``PermissionDenied`` for a refused name."""
        if path.startswith("~") and path != "~" and not path.startswith("~/"):
            raise BadRequest(f"path: {path}: ~ is the operator's home, no other; a file with this name is ./{path}")
        if not self.roots or path.startswith("~"):
            return self._on_host(path)
        steps = [step for step in path.split("/") if step not in ("", ".")]
        top, *rest = (
            [f"/{steps[0]}", *steps[1:]] if path.startswith("/") and steps else [next(iter(self.roots)), *steps]
        )
        if top in self.refused:
            raise PermissionDenied(f"{path}: {self.refused[top]}")
        if top not in self.roots:
            return self._on_host(path)
        inside = os.path.normpath("/" + "/".join(rest)).lstrip("/")
        return PathRequest(
            given=path,
            name=f"{top}/{inside}".rstrip("/"),
            path="/".join(rest) + ("/" if path.endswith("/") else "") if rest else ".",
            top=top,
            root=self.roots[top],
            identity=self.identity,
            max_size=self.max_size,
        )

    def _on_host(self, path: str) -> PathRequest:
        whole = self.home + path[1:] if path.startswith("~") else os.path.join(self.base, path)
        return PathRequest(
            given=path,
            name="/" + os.path.normpath(whole).lstrip("/"),
            path=whole,
            owner=self.identity,
            single_link=self.single_link,
            max_size=self.max_size,
            hidden=tuple(self.roots),
        )


def view_from_jail(host: View, spec: AgentSpec, jail: Jail) -> View:
    """The view of an agent with a running jail: its workspace, its code, and the host's files that rules grant."""
    outer = jail.parts.outer
    return replace(
        host,
        single_link=True,
        roots={top: partial(directory_of, jail.sandbox, top.lstrip("/"), spec.name) for top in (WORKSPACE, CODE)},
        refused={"/tmp": f"your /tmp is your programs' alone: put files into {WORKSPACE}, or use EXEC"},
        identity=Identity(outer.uid, outer.gid) if outer is not None else None,
        max_size=effective(spec).file_size,
    )
