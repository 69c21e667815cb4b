"""An image is the root: what it has, what is of the sandbox's own, and what can be written."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.sandbox.policy import Limits, RootImage
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from tests.sandbox.jail import a_plan, run
from tests.support.images import make_root

DIRECTORIES = ("bin", "etc", "lib", "lib64", "run", "srv")


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """The files of an image, in a directory that no other user may enter."""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/var/tmp") as made:
        place = Path(made, "closed")
        place.mkdir(mode=0o700)
        (place / "root").mkdir()
        os.chmod(place / "root", 0o755)
        yield make_root(place / "root")


def shell(root: Path, script: str, image: RootImage | None = None, **more: Any) -> tuple[Step, ...]:
    found = tuple(name for name in DIRECTORIES if (root / name).is_dir())
    accounts = ((root / "etc" / "passwd").read_text(), "")
    image = image or RootImage(str(root), found, (), (("PATH", "/bin"),), accounts=accounts)
    return a_plan("/bin/sh", "-ec", script, image=image, **more)


def list_tree(root: Path) -> dict[str, float]:
    return {str(path): path.lstat().st_ctime for path in root.rglob("*")}


async def test_the_root_is_the_image_with_what_is_the_sandboxs_own(spawner: Spawner, root: Path) -> None:
    script = "ls /; cat /srv/name; id -un; ls /agent; ls /dev; cat /proc/self/mountinfo"

    ended = await run(spawner, shell(root, script))

    assert ended.err == ""
    shown = ended.out.split("\n")
    own = {"agent", "dev", "proc", "sdk", "tmp", "workspace"}
    names = set(shown[: shown.index("tiny")])
    assert names == own | {"bin", "etc", "lib", "lib64", "run", "sbin", "srv"}
    assert shown[shown.index("tiny") + 1] == "agent"
    assert {"null", "zero", "urandom", "shm", "fd"} <= set(shown)
    assert "/var/tmp" not in ended.out
    assert "/usr" not in names
    assert " / / " in ended.out
    assert "overlay image" in ended.out


async def test_what_is_written_to_an_image_is_gone_with_the_sandbox(spawner: Spawner, root: Path) -> None:
    before = list_tree(root)
    script = (
        "echo more >> /srv/name; rm -r /srv/data; mkdir /srv/data; echo x > /srv/data/new; mkdir /etc/made; "
        "cat /srv/name /srv/data/new; ls /srv/data"
    )

    ended = await run(spawner, shell(root, script))
    again = await run(spawner, shell(root, "cat /srv/name; ls /srv/data"))

    assert (ended.err, ended.out.split()) == ("", ["tiny", "more", "x", "new"])
    assert (again.err, again.out.split()) == ("", ["tiny", "file"])
    assert list_tree(root) == before


async def test_a_strict_sandbox_has_an_image_read_only(spawner: Spawner, root: Path) -> None:
    script = (
        "echo x > /workspace/x; cat /workspace/x /srv/name; "
        "if echo x > /srv/name; then exit 7; fi; if mkdir /srv/d; then exit 8; fi; if rm /srv/name; then exit 9; fi"
    )

    ended = await run(spawner, shell(root, script, profile="strict"))

    assert ended.status.code == 0, ended.err
    assert ended.out.split() == ["x", "tiny"]


async def test_no_path_is_both_written_and_executed_in_a_strict_sandbox(spawner: Spawner, root: Path) -> None:
    script = (
        "for place in /tmp /workspace /dev/shm; do "
        "cat /bin/ls > $place/ls; chmod 755 $place/ls; if $place/ls; then exit 7; fi; done; "
        "/bin/ls /srv > /dev/null"
    )

    ended = await run(spawner, shell(root, script, profile="strict"))

    assert ended.status.code == 0, ended.err
    assert "Permission denied" in ended.err


async def test_the_top_of_an_image_and_its_devices_cannot_be_written(spawner: Spawner, root: Path) -> None:
    script = "for place in /made /dev/made /proc/made /agent/made /sdk/made; do mkdir $place && exit 7; done; exit 0"

    ended = await run(spawner, shell(root, script))

    assert ended.status.code == 0, ended.err


async def test_the_tmpfs_of_an_image_is_bounded(spawner: Spawner, root: Path) -> None:
    script = "cat /dev/zero > /srv/big"

    ended = await run(spawner, shell(root, script, limits=Limits(disk=1 << 20)))

    assert "No space left on device" in ended.err


async def test_variables_and_the_users_name_are_those_of_the_image(spawner: Spawner, root: Path) -> None:
    image = RootImage(str(root), ("bin",), (), (("PATH", "/bin"), ("LANG", "xx")), "app", ("other:x:1000:1::/:\n", ""))

    ended = await run(spawner, shell(root, "id -un; echo $LANG $USER $HOME; cat /etc/passwd", image))

    assert ended.out.split("\n")[:3] == ["app", "xx app /workspace", "app:x:1000:1000:app:/workspace:/bin/sh"]


async def test_an_image_whose_places_are_links_or_files_leads_nowhere(spawner: Spawner, root: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/var/tmp") as made:
        hostile = make_root(Path(made))
        for name, target in (("tmp", "/proc"), ("dev", "/srv"), ("proc", "/etc"), ("workspace", "/etc"), ("sdk", "..")):
            os.symlink(target, hostile / name)
        (hostile / "agent").write_text("a file")
        image = RootImage(str(hostile), ("bin", "etc", "lib", "lib64", "srv"), (), (("PATH", "/bin"),))

        ended = await run(spawner, shell(hostile, "ls /agent; echo x > /tmp/x; ls -d /dev/null /proc/self/", image))

    assert ended.err == ""
    assert ended.out.split() == ["/dev/null", "/proc/self/"]
