"""An overlay shows a directory and takes what is written; the directory itself stays as it was."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.sandbox import steps as s
from agentos.sandbox.policy import Overlay
from agentos.sandbox.report import probe, remedies
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from agentos.services.snapshots.store import MAX_DEPTH
from tests.sandbox.jail import a_plan, run
from tests.support.mounts import mounted

OWNER = 4321
STRANGER = 4322
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="without root all files are of one user")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that no other user may enter, on the disk: a tmpfs can't be an upper layer everywhere."""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/var/tmp") as made:
        closed = Path(made, "closed")
        closed.mkdir(mode=0o700)
        yield closed


@pytest.fixture
def lower(place: Path) -> Path:
    """A directory of a user's, with a file, a directory with a file, and with root a stranger's file."""
    lower = place / "lower"
    (lower / "sub").mkdir(parents=True)
    (lower / "a.txt").write_text("a\n")
    (lower / "sub" / "b.txt").write_text("b\n")
    (lower / "strange.txt").write_text("c\n")
    if os.geteuid() == 0:
        for path in (lower, *lower.rglob("*")):
            os.chown(path, OWNER, OWNER)
        os.chown(lower / "strange.txt", STRANGER, STRANGER)
    return lower


def make_upper(place: Path) -> Path:
    upper = place / "upper"
    for part in ("", "tree", "work"):
        (upper / part).mkdir()
    return upper


def plan_shell(
    place: Path, lower: Path, script: str, profile: str = "standard", sealed: tuple[str, ...] = ()
) -> tuple[Step, ...]:
    upper = place / "upper" if (place / "upper").exists() else make_upper(place)
    return a_plan("/bin/sh", "-ec", script, workspace=Overlay(str(lower), str(upper), sealed), profile=profile)


def snapshot(top: Path) -> dict[str, tuple[int, int, int, bytes]]:
    found = {}
    for path in sorted(top.rglob("*")):
        one = path.lstat()
        found[str(path.relative_to(top))] = (
            one.st_mode,
            one.st_uid,
            one.st_mtime_ns,
            path.read_bytes() if stat.S_ISREG(one.st_mode) else b"",
        )
    return found


async def test_what_is_written_goes_to_the_upper_layer_alone(spawner: Spawner, place: Path, lower: Path) -> None:
    before = snapshot(lower)
    script = "cat a.txt; echo new > a.txt; rm sub/b.txt; mkdir made; echo x > made/y; cat a.txt; stat -c %u a.txt sub"

    ended = await run(spawner, plan_shell(place, lower, script))

    assert (ended.err, ended.out.split()) == ("", ["a", "new", "1000", "1000"])
    assert snapshot(lower) == before
    tree = place / "upper" / "tree"
    assert (tree / "a.txt").read_text() == "new\n"
    assert stat.S_ISCHR((tree / "sub" / "b.txt").lstat().st_mode)
    assert (tree / "made" / "y").read_text() == "x\n"


async def test_a_second_life_sees_what_the_first_has_written(spawner: Spawner, place: Path, lower: Path) -> None:
    await run(spawner, plan_shell(place, lower, "echo new > a.txt; rm -r sub"))

    ended = await run(spawner, plan_shell(place, lower, "cat a.txt; ls; echo more >> a.txt; cat a.txt"))

    assert (ended.err, ended.out.split()) == ("", ["new", "a.txt", "strange.txt", "new", "more"])


@root_only
async def test_a_strangers_file_can_be_removed_and_not_taken_over(spawner: Spawner, place: Path, lower: Path) -> None:
    script = "chmod 600 strange.txt 2>/dev/null && echo taken; rm -f strange.txt && ls"

    ended = await run(spawner, plan_shell(place, lower, script))

    assert (ended.err, ended.out.split()) == ("", ["a.txt", "sub"])
    assert (lower / "strange.txt").exists()


async def test_mountinfo_tells_no_path_of_the_host(spawner: Spawner, place: Path, lower: Path) -> None:
    ended = await run(spawner, plan_shell(place, lower, "cat /proc/self/mountinfo"))

    line = next(line for line in ended.out.splitlines() if line.split()[4] == "/workspace")
    assert "lowerdir=lower,upperdir=upper/tree,workdir=upper/work" in line
    assert "userxattr" in line
    assert {"nosuid", "nodev"} <= set(line.split()[5].split(","))
    assert str(place) not in ended.out


async def test_in_strict_no_file_of_an_overlay_is_executed(spawner: Spawner, place: Path, lower: Path) -> None:
    script = "printf '#!/bin/sh\\necho ran\\n' > p; chmod +x p; ./p || echo refused"

    ended = await run(spawner, plan_shell(place, lower, script, profile="strict"))

    assert ended.out == "refused\n"


async def test_the_agent_can_forge_nothing_of_the_layers_format(spawner: Spawner, place: Path, lower: Path) -> None:
    script = """
import os
def tried(*call):
    try: call[0](*call[1:]); print("done", end=" ")
    except OSError as e: print(e.errno, end=" ")
tried(os.mknod, "w", 0o020000, 0)
for name, value in (("opaque", b"y"), ("redirect", b"/../../etc"), ("metacopy", b""), ("whiteout", b"")):
    tried(os.setxattr, "sub", f"user.overlay.{name}", value)
    tried(os.setxattr, "a.txt", f"user.overlay.{name}", value)
    tried(os.setxattr, "a.txt", f"trusted.overlay.{name}", value)
"""
    (lower / "forge.py").write_text(script)

    ended = await run(spawner, plan_shell(place, lower, "exec python3 -I forge.py"))

    assert ended.err == ""
    tree = place / "upper" / "tree"
    for path in (tree, *tree.rglob("*")):
        assert not stat.S_ISCHR(path.lstat().st_mode)
        forged = {name for name in os.listxattr(path) if name.startswith(("user.overlay.", "trusted."))}
        allowed = tuple(f"user.overlay.{name}" for name in ("origin", "impure", "uuid", "overlay."))
        assert {name for name in forged if not name.startswith(allowed)} == set()


@root_only
async def test_a_store_on_an_overlay_is_refused_by_name(spawner: Spawner, place: Path, lower: Path) -> None:
    for name in ("l", "u", "w", "merged"):
        (place / name).mkdir()
    with mounted("overlay", f"lowerdir={place}/l,upperdir={place}/u,workdir={place}/w", place / "merged") as merged:
        found = await probe.probe_overlay(spawner, probe.read_host(), str(merged))

        assert os.listdir(merged) == []
    assert (found.works, found.remedy) == (False, remedies.OVERLAY_REMEDY)
    assert found.reason.startswith(("MountOverlay", "DetachLayer"))


async def test_where_overlays_work_a_probe_says_so_and_leaves_nothing(spawner: Spawner, place: Path) -> None:
    found = await probe.probe_overlay(spawner, probe.read_host(), str(place))

    assert (found.works, found.reason, os.listdir(place)) == (True, "", [])


@root_only
async def test_a_mount_in_the_directory_is_not_shown(spawner: Spawner, place: Path, lower: Path) -> None:
    (lower / "sub" / "mnt").mkdir()
    with mounted("tmpfs", "mode=755", lower / "sub" / "mnt") as there:
        (there / "hidden").touch()

        ended = await run(spawner, plan_shell(place, lower, "ls sub/mnt"))

    assert (ended.err, ended.out) == ("", "")


def test_the_layers_are_detached_after_a_jail_ahead_would_wait(lower: Path, place: Path) -> None:
    kinds = [type(step) for step in plan_shell(place, lower, "true")]
    opened = s.DetachLayer if os.geteuid() == 0 else s.OpenSource

    assert kinds.index(s.StandBy) < max(i for i, kind in enumerate(kinds) if kind is opened)
    assert kinds.index(s.TakeIdentity) < kinds.index(s.MountOverlay) < kinds.index(s.CloseSources)


async def test_sealed_layers_lie_between_the_directory_and_what_is_written(
    spawner: Spawner, place: Path, lower: Path
) -> None:
    await run(spawner, plan_shell(place, lower, "echo first > a.txt; echo 1 > one; mkdir d; echo d > d/x"))
    (place / "upper").rename(place / "s1")
    sealed: tuple[str, ...] = (str(place / "s1" / "tree"),)
    await run(spawner, plan_shell(place, lower, "echo second > a.txt; rm one; rm -r d; mkdir d", sealed=sealed))
    (place / "upper").rename(place / "s2")
    sealed = (str(place / "s2" / "tree"), *sealed)
    kept = {path: snapshot(Path(path)) for path in sealed}

    ended = await run(spawner, plan_shell(place, lower, "cat a.txt; ls -A . d; echo x > d/y; rm a.txt", sealed=sealed))

    assert (ended.err, ended.out.split()) == ("", ["second", ".:", "a.txt", "d", "strange.txt", "sub", "d:"])
    assert {path: snapshot(Path(path)) for path in sealed} == kept
    assert (lower / "a.txt").read_text() == "a\n"


async def test_as_many_sealed_layers_as_a_workspace_has_can_be_mounted(
    spawner: Spawner, place: Path, lower: Path
) -> None:
    sealed = []
    for number in range(MAX_DEPTH):
        made = place / f"s{number}"
        made.mkdir()
        (made / str(number)).write_text("x")
        if os.geteuid() == 0:
            os.chown(made, OWNER + number, OWNER)
            os.chown(made / str(number), OWNER + number, OWNER)
        sealed.append(str(made))

    ended = await run(spawner, plan_shell(place, lower, "ls [0-9]* | wc -l; stat -c %u 0 31", sealed=tuple(sealed)))

    assert (ended.err, ended.out.split()) == ("", [str(MAX_DEPTH), "1000", "1000"])
