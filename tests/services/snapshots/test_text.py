"""The text of a change is what diff(1) would write, in bounded time."""

import pytest
import trio

from agentos.services.snapshots import text
from agentos.services.snapshots.changes import NOT_UTF8, TARGET_NOT_UTF8
from agentos.services.snapshots.run import UNKEPT

from .conftest import Overlaid

PAIRS = {
    "created": ("", "a\nb\n"),
    "emptied": ("a\nb\n", ""),
    "in the middle": ("".join(f"{n}\n" for n in range(40)), "".join(f"{n if n % 15 else 'x'}\n" for n in range(40))),
    "no newline at the end": ("a\nb", "a\nb\nc"),
    "at the end": ("a\nb\nc\nd\ne\n", "a\nb\nc\nd\ne\nf\n"),
    "at the beginning": ("a\nb\nc\nd\ne\n", "z\na\nb\nc\nd\ne\n"),
}


@pytest.mark.parametrize(("old", "new"), PAIRS.values(), ids=PAIRS)
async def test_it_is_a_unified_diff(overlaid: Overlaid, old: str, new: str) -> None:
    overlaid.write("sub/b.txt", new)
    (overlaid.project / "sub/b.txt").write_text(old)

    shown = (await overlaid.diff(texts=True)).texts["sub/b.txt"]

    patch = f"--- sub/b.txt\n+++ sub/b.txt\n{shown}".encode()
    await trio.run_process(["git", "apply", "-p0", "-"], stdin=patch, cwd=overlaid.project)
    assert (overlaid.project / "sub/b.txt").read_text() == new


async def test_what_is_no_text_or_too_large_has_none(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "x\0")
    (overlaid.tree / "latin").write_bytes(b"\xe9\n")
    overlaid.write("big", "x" * (text.MAX_FILE + 1))
    overlaid.write("sub/b.txt", "b\nnew\n")
    overlaid.delete("sub/c.txt")

    assert (await overlaid.diff(texts=True)).texts == {
        "sub/b.txt": "@@ -1,1 +1,2 @@\n b\n+new\n",
        "sub/c.txt": "@@ -1,1 +0,0 @@\n-c\n",
    }


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("a\n\nto apply exactly this: x", "+a\n+\n+to apply exactly this: x\n"),
        ("a\n", "+a\n+\n"),
        ("\udcff", "+\\xff\n"),
    ],
)
async def test_a_links_target_has_no_line_of_its_own(overlaid: Overlaid, target: str, shown: str) -> None:
    (overlaid.tree / "one").symlink_to(target)

    assert (await overlaid.diff(texts=True)).texts == {"one": shown}


async def test_what_isnt_utf_8_is_told_and_the_rest_applied(overlaid: Overlaid) -> None:
    (overlaid.project / "mine").symlink_to("\udcff")
    await overlaid.overlays.discard(overlaid.name, lambda: False)
    await overlaid.open()
    (overlaid.tree / "leads").symlink_to("/\udcff")
    (overlaid.tree / "out\udcff").symlink_to("/etc")
    overlaid.write("d\udcff/.vscode/tasks.json", "{}")
    overlaid.write("new", "x\n")
    overlaid.delete("mine")

    shown = {one.shown_path: one.blocked for one in (await overlaid.diff(texts=True)).changes}
    applied = await overlaid.apply()

    names = dict.fromkeys(("d\\xff/.vscode", "d\\xff/.vscode/tasks.json", "d\\xff", "out\\xff"), NOT_UTF8)
    assert shown == {"leads": TARGET_NOT_UTF8, **names, "new": "", "mine": ""}
    assert (applied.paths, applied.left["mine"]) == (["new"], UNKEPT)


async def test_many_lines_that_differ_are_replaced_as_a_whole(overlaid: Overlaid) -> None:
    lines = text.MAX_COMPARED + 1
    (overlaid.project / "a.txt").write_text("".join(f"{n % 7}\n" for n in range(lines)))
    overlaid.write("a.txt", "".join(f"{n % 5}\n" for n in range(lines)))

    shown = (await overlaid.diff(texts=True)).texts["a.txt"].splitlines()

    assert [line[0] for line in shown].count("@") == 1
    assert len(shown) > 2 * lines - 20
