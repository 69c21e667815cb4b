"""Which changes of an overlay are applied: those that are wanted, with what they need, as steps."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from msgspec import Struct

from . import obeyed
from .changes import Change
from .records import Look, Step

Side = Literal["ours", "theirs"]


class BadChoice(Exception):
    """What was chosen for a conflict, or named, isn't among the changes; the text says which."""


class Wanted(Struct, frozen=True):
    """Which changes to apply: at and below ``paths`` (all if there are none), obeyed names that ``also`` names.

    ``resolve`` decides conflicts: the agent's version (``ours``), or the host's (``theirs``).
    """

    digest: str
    paths: Sequence[str] = ()
    also: Sequence[str] = ()
    resolve: Mapping[str, Side] = {}


def check_choice(shown: Sequence[Change], wanted: Wanted) -> None:
    paths, named = {change.path for change in shown}, [change for change in shown if change.root]
    if missing := sorted(wanted.resolve.keys() - paths):
        raise BadChoice(f"resolve: {missing[0]} is not among the changes")
    for also in wanted.also:
        if not any(obeyed.is_named(change.path, change.root, also) for change in named):
            raise BadChoice(f"also: {also} is no name among the changes that has to be named")


def choose(shown: Sequence[Change], wanted: Wanted) -> tuple[list[Change], dict[str, str]]:
    """The changes to apply, and why each of the others is left; those that were declined are neither."""
    chosen: list[Change] = []
    left: dict[str, str] = {}
    for change in shown:
        side = wanted.resolve.get(change.path)
        if side == "theirs":
            continue
        if change.blocked:
            left[change.shown_path] = f"{change.blocked}: it is never applied"
        elif change.root and not any(obeyed.is_named(change.path, change.root, also) for also in wanted.also):
            left[change.path] = f"{change.obeyed}: it is applied with --also {change.root}"
        elif change.conflict and side != "ours":
            left[change.path] = f"{change.conflict}: --ours applies the agent's, --theirs keeps the host's"
        else:
            chosen.append(change)
    return chosen, left


def add_needed(chosen: Sequence[Change], everything: Sequence[Change]) -> list[Change]:
    """The changes, with the objects of git that refs among them need, and the new directories that all these are in."""
    made = {change.path: change for change in everything if change.what == "created" and change.kind == "directory"}
    of_refs = {change.root for change in chosen if obeyed.is_ref(change.path)}
    found = {change.path: change for change in chosen}
    found |= {one.path: one for one in everything if one.root in of_refs and obeyed.is_in_objects(one.path)}
    for change in [*found.values()]:
        path = change.path
        while path := path.rpartition("/")[0]:
            if path in made:
                found.setdefault(path, made[path])
    return sorted(found.values(), key=lambda change: change.path)


def build_steps(chosen: Sequence[Change]) -> list[Step]:
    """The steps that make these changes, which are sorted by path: removals, children first; then the others."""
    steps = [
        Step("rmdir" if change.kind == "directory" else "remove", change.path, change.under)
        for change in reversed(chosen)
        if change.what == "deleted"
    ]
    for change in chosen:
        look = Look(change.mode, change.mtime, target=change.content if change.kind == "link" else "")
        step = partial(Step, path=change.path, expected=change.under, look=look)
        if change.what == "deleted":
            continue
        if change.kind == "directory":
            steps.append(step("chmod" if change.what == "changed" else "mkdir"))
        elif change.kind == "link":
            steps.append(step("put"))
        else:
            steps.append(step("put", source=change.path, content=change.content))
    return steps
