"""The state directory: one that others could change is refused, and one that is moved away stays in use."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.services.audit.query import Query, iterate_all
from agentos.services.audit.verify import verify_log
from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.kernel import environment
from tests.system.agents import up

ROOT = os.geteuid() == 0
PRECIOUS = "somebody's file"


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as made:
        (Path(made) / "state").mkdir(0o700)
        (Path(made) / "precious").write_text(PRECIOUS)
        yield Path(made)


def refusal(place: Path, socket: str = "socket", env: dict[str, str] | None = None) -> str:
    """What a kernel says that doesn't start."""
    words = ["run", "--socket", str(place / socket), "--state-dir", "state"]
    done = run_agentos(words, place, {**environment(place), **(env or {})})
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    return line


@pytest.mark.usefixtures("kernels")
def test_no_kernel_starts_in_a_state_directory_that_others_may_write_to(place: Path) -> None:
    (place / "state").chmod(0o777)

    assert refusal(place) == (
        f"agentos: {place}/state: belongs to uid {os.geteuid()}, but its mode 0777 lets other users write to it: "
        f"run `chmod go-w {place}/state`, or choose another directory with --state-dir"
    )
    assert os.listdir(place / "state") == []


@pytest.mark.skipif(not ROOT, reason="only root can give a directory to another uid")
@pytest.mark.usefixtures("kernels")
def test_no_kernel_of_roots_starts_in_another_users_state_directory(place: Path) -> None:
    os.chown(place / "state", 65534, 65534)

    assert refusal(place) == (
        f"agentos: {place}/state: belongs to uid 65534 (mode 0700), and the kernel runs as uid 0: "
        "choose another directory with --state-dir"
    )
    assert os.listdir(place / "state") == []


@pytest.mark.parametrize(
    "name",
    [
        *("lock", "run.json", "run.json.new", "stubs.json", "agentos.db", "agentos.db-wal", "agentos.db-shm"),
        *("audit/000001.head", "audit/000001.db", "audit/000001.db-wal"),
        pytest.param("outer-ids.json", marks=pytest.mark.skipif(not ROOT, reason="only root gives uids to agents")),
    ],
)
@pytest.mark.parametrize("kind", ["symlink", "hard link"])
@pytest.mark.usefixtures("kernels")
def test_no_file_elsewhere_is_changed_through_a_link_in_the_state_directory(place: Path, name: str, kind: str) -> None:
    link = place / "state" / name
    link.parent.mkdir(exist_ok=True)
    if kind == "symlink":
        link.symlink_to(place / "precious")
    else:
        os.link(place / "precious", link)

    said = refusal(place)

    assert said.startswith(f"agentos: {link}: ")
    assert ("is a symlink: remove it" if kind == "symlink" else "has 2 names (hard links)") in said
    assert (place / "precious").read_text() == PRECIOUS


@pytest.mark.usefixtures("kernels")
def test_the_audit_directory_is_not_reached_through_a_symlink(place: Path) -> None:
    (place / "elsewhere").mkdir()
    (place / "state" / "audit").symlink_to(place / "elsewhere")

    assert refusal(place) == (
        f"agentos: {place}/state/audit: is a symlink to {place}/elsewhere: name the directory itself"
    )
    assert os.listdir(place / "elsewhere") == []


@pytest.mark.usefixtures("kernels")
def test_no_kernel_listens_where_every_user_may_put_another_socket(place: Path) -> None:
    (place / "shared").mkdir()
    (place / "shared").chmod(0o777)

    said = refusal(place, socket="shared/socket")

    assert said == (
        f"agentos: {place}/shared/socket: can be replaced by every user, as {place}/shared has mode 0777: "
        f"run `chmod o-w {place}/shared`"
    )
    assert f"as {place}/shared has mode 0777" in refusal(place, env={"XDG_RUNTIME_DIR": f"{place}/shared"})


@pytest.mark.parametrize("moved", ["state", "state/audit"])
def test_the_audit_log_goes_on_in_the_directory_that_was_moved_away_from_a_running_kernel(
    own_kernel: OwnKernel, moved: str
) -> None:
    kernel = own_kernel()
    away, audit = kernel.place / "away", kernel.place / "away" / ("audit" if moved == "state" else "")
    with kernel.client() as client:
        up(client.exec(["true", "before"]))
        os.rename(kernel.place / moved, away)
        (kernel.place / moved).mkdir()

        up(client.exec(["true", "after"]))
        read = [entry["about"] for entry in client.get_audit_log("commands", limit=100)["entries"]]

    assert os.listdir(kernel.place / moved) == []
    assert [about for about in read if "after" in about]
    written = [row.about for row in iterate_all(audit, Query(calls=["EXEC"]))]
    assert [about for about in written if "before" in about]
    assert [about for about in written if "after" in about]
    assert not verify_log(audit).faults
    (kernel.place / moved).rmdir()
    os.rename(away, kernel.place / moved)
    assert json.loads((kernel.state_dir / "run.json").read_text())["id"] == kernel.run_id
