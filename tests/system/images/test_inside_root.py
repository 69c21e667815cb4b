"""Agents with ``user = "root"``: what needs a root inside works, and what they have of the host is a block of ids."""

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pip
import pytest

from agentos.images.importer import import_image
from agentos.images.store import Images
from agentos.sandbox.host_ids import BLOCK_STEP, FIRST_BLOCK, STORE_IDS
from agentos_sdk import AgentOSClient
from tests.support.images import add_packages, add_python, make_oci, make_root, tar_root, write_files
from tests.support.kernel import Kernel, running
from tests.system.agents import up

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="no Debian, whose package manager is copied")
IS_ROOT = os.geteuid() == 0  # else there are subordinate ids, or one, and then what takes others does nothing

TOML = """
[[agents]]
name = "one"
command = ["sleep", "1000"]
image = "debian"
user = "root"

[[agents]]
name = "two"
command = ["sleep", "1000"]
image = "debian"
user = "root"

[[agents]]
name = "three"
command = ["sleep", "1000"]
image = "debian"
user = "root"
workspace = {{ path = "{project}", mode = "overlay" }}

[[agents]]
name = "keeper"
command = ["sleep", "1000"]
image = "debian"
user = "root"
workspace = "keep"

[[agents]]
name = "plain"
command = ["sleep", "1000"]
image = "debian"
"""


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aos-project-", dir="/var/tmp") as made:
        Path(made, "theirs").write_text("theirs")
        yield Path(made)


@pytest.fixture(scope="module")
def started(kernels: None, project: Path) -> Iterator[Kernel]:
    with (
        tempfile.TemporaryDirectory(prefix="aos-images-", dir="/var/tmp") as made,
        running(TOML.format(project=project)) as kernel,
    ):
        place = Path(made)
        (place / "root").mkdir()
        root = make_root(place / "root")
        add_python(root)
        add_packages(root, place / "deb")
        shutil.copytree(Path(pip.__file__).parent, root / "srv" / "tools" / "pip")
        info, wheel = "small-1.dist-info", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        texts = {"small.py": "", f"{info}/METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1\n"}
        with zipfile.ZipFile(root / "srv" / "small-1-py3-none-any.whl", "w") as file:
            for name, text in {**texts, f"{info}/WHEEL": wheel, f"{info}/RECORD": "small.py,,\n"}.items():
                file.writestr(name, text)
        users = "useradd -m bob; su bob -c 'id -u; id -g; echo x > /home/bob/x'\n"  # an EXEC's own line may not
        (root / "srv" / "users.sh").write_text(users)
        (root / "var" / "mail").mkdir()
        (root / "var" / "mail" / "app").write_text("mail\n")
        if IS_ROOT:
            os.chown(root / "var" / "mail", 0, 8)
            os.chown(root / "var" / "mail" / "app", 1000, 8)
        (root / "var" / "mail").chmod(0o2775)
        (root / "bin" / "su").chmod(0o4755)
        layout = write_files(place / "layout", make_oci([tar_root(root)], {"User": "app"}, pack=False))
        import_image(Images(kernel.state_dir), layout, "debian")
        with kernel.client() as client:
            for name in ("one", "two", "three", "keeper", "plain"):
                up(client.restart(name))
        yield kernel


def sh(client: AgentOSClient, script: str, name: str = "one") -> str:
    ended = client.exec(["sh", "-ec", script], name=name)
    assert ended["exit_code"] == 0, ended
    return str(ended["stdout"])


def has_block(client: AgentOSClient) -> bool:
    """Whether root inside has ids to give, as it always has where the kernel is root."""
    count = sum(int(line.split()[2]) for line in sh(client, "cat /proc/self/uid_map").splitlines())
    assert count >= 65_536 or not IS_ROOT
    return count > 1


def test_root_inside_installs_packages_makes_users_and_becomes_them(started: Kernel) -> None:
    with started.client() as client:
        has_ids = has_block(client)
        apt = sh(client, "apt-get -q update 2>&1; apt-get -q -y install inside 2>&1; stat -c '%a %U %G' /usr/bin/tab")
        assert apt.splitlines()[-1] == ("2755 root crontab" if has_ids else "2755 root root"), apt
        assert sh(client, "stat -c '%a %U' /var/spool/tab") == ("1730 daemon\n" if has_ids else "1730 root\n")
        user = sh(client, "sh -e /srv/users.sh; stat -c %U /home/bob/x")
        assert user == ("1001\n1001\nbob\n" if has_ids else "0\n0\nroot\n")
        install = "-m pip install --no-index --break-system-packages /srv/small-1-py3-none-any.whl"
        assert "Successfully installed small-1" in sh(client, f"PYTHONPATH=/srv/tools python3 {install} 2>&1")


def test_root_inside_is_a_block_of_ids_with_its_own_capabilities(started: Kernel) -> None:
    with started.client() as client:
        layers = {name: client.inspect(name)["isolation"]["layers"] for name in ("one", "two", "plain")}
        for name in ("one", "two"):
            actives = {layer: one["active"] for layer, one in layers[name].items()}
            assert actives == {**{layer: one["active"] for layer, one in layers["plain"].items()}, "user": True}
            assert "CapEff=00000000800000fb" in layers[name]["capabilities"]["evidence"]
        assert "user" not in layers["plain"]
        firsts = [int(layers[name]["user"]["evidence"].split()[1]) for name in ("one", "two")]
        assert sh(client, "id -un; echo $HOME $USER; pwd") == "root\n/root root\n/workspace\n"
        assert sh(client, "id -un; id -u", "plain") == "app\n1000\n"

    if not IS_ROOT:
        assert firsts == [os.geteuid()] * 2
        return
    assert abs(firsts[0] - firsts[1]) >= BLOCK_STEP
    assert all(first >= FIRST_BLOCK + BLOCK_STEP and not first % BLOCK_STEP for first in firsts)


def test_what_root_inside_makes_ends_with_its_life_and_is_nowhere_on_the_host(started: Kernel) -> None:
    with started.client() as client:
        code = "import os; [os.chmod(os.open(f'{d}/f', os.O_CREAT), 0o6755) for d in ('/made', '/srv', '/workspace')]"
        made = sh(client, f'mkdir /made; python3 -c "{code}"; stat -c %a /srv/f', "two")
        assert made == "6755\n"
        images = started.state_dir / "images"
        entries = {path: path.lstat() for path in images.rglob("*")}
        found = {path.name for path, entry in entries.items() if entry.st_mode & 0o6000}
        owners = {(entry.st_uid, entry.st_gid) for path, entry in entries.items() if path.name in found}
        up(client.restart("two"))
        assert sh(client, "ls -d /made /srv/f 2>/dev/null || echo gone", "two") == "gone\n"

    # The image's own set-id files are there, with ids of no process.
    assert {"mail", "su"} <= found if IS_ROOT else not found
    assert owners <= {(STORE_IDS[0], STORE_IDS[0] + group) for group in (0, 8)} | {(os.geteuid(), os.getegid())}
    assert not IS_ROOT or all(entry.st_uid >= STORE_IDS[0] for entry in entries.values() if entry.st_mode & 0o6000)


def test_files_have_the_owners_and_bits_of_the_image_and_one_user_owns_them_all(started: Kernel) -> None:
    look = "stat -c '%u %g %a' /var/mail /var/mail/app /bin/su; echo x >> /var/mail/app; cat /var/mail/app"
    with started.client() as client:
        root, plain = sh(client, look, "two").split(), sh(client, look, "plain").split()

    lost = "0 0 775 0 0 644 0 0 755"
    assert " ".join(root[:9]) == ("0 8 2775 1000 8 644 0 0 4755" if IS_ROOT else lost)
    assert " ".join(plain[:9]) == lost.replace("0 0", "1000 1000")
    assert root[9:] == plain[9:] == ["mail", "x"]


def test_what_root_inside_changes_in_a_project_is_applied_without_its_ids_and_bits(
    started: Kernel, project: Path
) -> None:
    with started.client() as client:
        code = "import os; [os.chmod(os.open(f, os.O_CREAT), 0o6755) or os.chown(f, 33, 33) for f in ('new', 'theirs')]"
        sh(client, f'python3 -c "{code}"; echo more >> theirs', "three")
        [tree] = (started.state_dir / "layers").glob("**/tree")
        owners = {path.name: path.stat().st_uid for path in tree.iterdir()}
        found = client.diff("three")
        client.apply("three", found["digest"])

    assert owners == dict.fromkeys(("new", "theirs"), STORE_IDS[0] + 33 if IS_ROOT else os.geteuid())
    for name in ("new", "theirs"):
        made = (project / name).stat()
        assert (made.st_mode & 0o7777, made.st_uid) == (0o755, os.geteuid()), name


def test_a_kept_workspace_of_root_inside_keeps_owners_and_bits_and_gives_none_on_the_host(started: Kernel) -> None:
    code = "import os; os.mkdir('d'); os.chmod(os.open('d/f', os.O_CREAT), 0o6755); os.chown('d', 33, 42)"
    look = "stat -c '%u %g %a' d d/f"
    with started.client() as client:
        before = sh(client, f'python3 -c "{code}"; {look}', "keeper")
        up(client.restart("keeper"))
        after = sh(client, f"{look}; rm -r d", "keeper")

    assert before == after == ("33 42 755\n0 0 6755\n" if IS_ROOT else "0 0 755\n0 0 6755\n")
    kept = started.state_dir / "workspaces"
    assert kept.stat().st_mode & 0o077 == 0
    for path in kept.glob("keeper"):  # a directory, where no image can be mounted
        assert path.stat().st_uid == (STORE_IDS[0] if IS_ROOT else os.geteuid())
