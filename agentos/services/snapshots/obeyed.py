"""Which changes are applied only by name: of names that programs of the host obey, and of links that lead out."""

import re
import unicodedata
from collections.abc import Sequence

from agentos.protected_names import find_obeyed

from .beneath import Kind

_COMMITS = ("objects", "refs", "HEAD", "ORIG_HEAD", "FETCH_HEAD", "COMMIT_EDITMSG", "index", "logs", "packed-refs")
_OBJECTS_INFO = ("objects", "info")
_PRESETS = "presets"
_REPLACE = ("refs", "replace")
# What git makes anew of these (an index of several packs, bitmaps, reverse indexes) says where which content is, and
# isn't compared with it: it would give the host's objects other contents.
_OBJECT = re.compile(r"[0-9a-f]{2}/(?:[0-9a-f]{38}|[0-9a-f]{62})|pack/pack-[0-9a-f]+\.(?:pack|idx)")
# As git's core.protectHFS and core.protectNTFS: HFS+ ignores these characters, NTFS dots, blanks and streams at an end.
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_TAIL = re.compile(r"(?<=[^. ])[. ]+$|(?<=[^:]):.*$")
_UNLIKE = re.compile(r"[^a-z0-9_./-]|\.(?:/|\Z)")  # without it no file system takes a path for another one
_OBJECT_DIRECTORY = re.compile(r"[0-9a-f]{2}|pack")
BARE = ("refs", "commondir")  # one with HEAD and objects beside it, and git obeys the directory's configuration
HEAD = "HEAD"


def find_reason(
    path: str, kind: Kind, target: str | None = None, repository: str | None = None
) -> tuple[str, str] | None:
    """The name to give so that a change is applied, and why it must be given; None for any other change.

    ``target`` is where a symbolic link leads, ``repository`` a directory of the host's around the change that git takes
    for a repository. In .git all but what commits and branches consist of has a name of its own: the hooks aren't
    applied with the commits.
    """
    parts = path.split("/")
    if ".git" in parts:
        place = parts.index(".git") + 1
        top, inside = "/".join(parts[:place]), tuple(parts[place:])
        if not inside and kind != "directory":
            return top, "git obeys the repository that it names"
        if kind == "link":
            return path, "git writes to where it leads"
        if inside[:2] == _REPLACE:
            return f"{top}/refs/replace", "git shows other contents in the place of those that they name"
        if inside[:2] == _OBJECTS_INFO or find_obeyed("/".join(inside[1:])) is not None:
            return path, "git obeys it"
        if not inside or inside[0] in _COMMITS:
            return top, "git takes it for commits, branches or what is to be committed"
        return f"{top}/{inside[0]}", "git obeys it"
    if repository is not None:
        below = len(repository) + 1 if repository else 0
        return path[:below] + path[below:].partition("/")[0], "git obeys the repository that it is in"
    if (found := find_obeyed(path)) is not None:
        return found[0], f"{found[1]} obeys it"
    if parts[-2:] == [".jj", "repo"] and kind != "directory":
        return path, "Jujutsu obeys the repository that it names"
    if path.endswith(".toml") and _PRESETS in parts[:-1]:
        return "/".join(parts[: parts.index(_PRESETS) + 1]), "beside agentos.toml it decides how programs are started"
    for number, part in enumerate(parts, 1):
        if part in BARE or part == HEAD:
            return "/".join(parts[:number]), "git takes a directory with such names for a repository, and obeys it"
    if target is not None and leads_out(path, target):
        return path, "a link that leads out of the directory"
    if (name := find_alike(path)) is not None:
        return path, f"other file systems take a part of it for {name}, which programs obey"
    return None


def find_alike(path: str) -> str | None:
    """The obeyed name that macOS or Windows would take a part of this path for, which isn't one on Linux."""
    if _UNLIKE.search(path) is None:
        return None
    folded = _IGNORED.sub("", unicodedata.normalize("NFKC", path).casefold())
    parts = [_TAIL.sub("", part) for part in folded.split("/")]
    alike = [".git" if part == "git~1" else part for part in parts]
    if ".git" in alike:
        return ".git"
    found = find_obeyed("/".join(alike))
    return found[0].rpartition("/")[2] if found is not None else None


def is_object(path: str, kind: Kind = "file") -> bool:
    """Whether a path is an object of a git repository or a pack of them, or may be a directory of these."""
    inside = "/".join(_inside_git(path)[1:]) if is_in_objects(path) else ""
    return (_OBJECT_DIRECTORY if kind == "directory" else _OBJECT).fullmatch(inside) is not None


def is_in_objects(path: str) -> bool:
    """Whether a path is in the objects of a git repository, but for what git obeys there."""
    inside = _inside_git(path)
    return inside[:1] == ["objects"] and inside[:2] != [*_OBJECTS_INFO] and len(inside) > 1


def is_ref(path: str) -> bool:
    """Whether a path is in the refs of a git repository, or is its file of packed ones."""
    return _inside_git(path)[:1] in (["refs"], ["packed-refs"])


def _inside_git(path: str) -> Sequence[str]:
    """The parts of a path in a ``.git``, none of another one."""
    parts = path.split("/")
    return parts[parts.index(".git") + 1 :] if ".git" in parts else []


def leads_out(path: str, target: str) -> bool:
    """Whether a symbolic link may lead out of the directory: it is absolute, or has ``..`` that isn't in front."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return target.startswith("/") or ups > path.count("/") or ".." in parts[ups:]


def is_named(path: str, root: str, also: str) -> bool:
    """Whether a name that was given stands for this path, whose name to give is ``root``, or for a part of that."""
    return also == root or (also.startswith(f"{root}/") and (path == also or path.startswith(f"{also}/")))
