"""The Dockerfile: what it copies is enough to install, its flags are the doctor's, its commands work in a Debian root.

The last takes a root directory, the network and two minutes, so it is asked for:
``debootstrap --variant=minbase bookworm DIR``, then ``AGENTOS_DEBIAN_ROOT=DIR`` for pytest, as root.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from attrs import define, field

from agentos.sandbox.report import remedies
from agentos.sandbox.report.remedies import Surroundings, find_remedy
from tests.docs.blocks import ROOT
from tests.system.model.test_packages import build

DOCKERFILE = (ROOT / "Dockerfile").read_text()
LINES = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
INSTRUCTIONS = [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in LINES]
TREE = '[[supervisor.children]]\nname = "once"\nrestart = "temporary"\ncommand = ["sh", "-c", "echo jailed"]\n'
# A root directory with a /proc of which nothing is covered, as with the flags, and one with a container's usual one.
PIVOT = """\
mount --bind "$1" "$1"; cd "$1"; mount --rbind /dev dev; mount -t proc proc proc; mount -t tmpfs tmpfs tmp
mkdir -p .host; pivot_root . .host; umount -l /.host; shift; exec "$@"
"""
OPEN = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", PIVOT, "sh"]
COVERED = ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
GIVEN = os.environ.get("AGENTOS_DEBIAN_ROOT")


def copy_sources(root: Path) -> None:
    """Do what the COPY instructions say, from the repository."""
    for kind, words in INSTRUCTIONS:
        if kind == "COPY":
            *sources, target = words.split()
            into = root / target.lstrip("/")
            if len(sources) == 1 and (ROOT / sources[0]).is_dir():
                shutil.copytree(ROOT / sources[0], into, ignore=shutil.ignore_patterns("__pycache__"))
                continue
            into.mkdir(parents=True, exist_ok=True)
            for source in sources:
                shutil.copy(ROOT / source, into)


def test_what_is_copied_makes_the_same_wheel(tmp_path: Path) -> None:
    copy_sources(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    copied = build("build_wheel", tmp_path / "usr/src/agentos", tmp_path / "a")
    whole = build("build_wheel", ROOT, tmp_path / "b")

    assert sorted(zipfile.ZipFile(copied).namelist()) == sorted(zipfile.ZipFile(whole).namelist())


def test_the_flags_are_those_that_the_doctor_names() -> None:
    inside = Surroundings(
        uid=999, filtered=True, apparmor="docker-default (enforce)", covered=("/proc/kcore", "/proc/keys")
    )
    refused = [("Clone", "", 1), ("MountProc", "", 1), ("Mount", "", 13)]
    said = " ".join(find_remedy(step, text, error, inside) for step, text, error in refused)

    page = (ROOT / "docs/how-to/run-in-a-container.md").read_text()
    flags = set(re.findall(r"--security-opt [a-z]+=\w+", page))
    assert flags == set(re.findall(r"--security-opt [a-z]+=\w+", said))
    commands = re.findall(r"docker run --(?:.*\\\n)*.*", page)
    assert len(commands) == 2
    for command in commands:
        assert flags - {"--security-opt unmask=ALL"} == set(re.findall(r"--security-opt [a-z]+=\w+", command))
    assert remedies.SECCOMP_REMEDY in said


def test_its_commands_make_a_root_in_which_agents_are_jailed(tmp_path: Path) -> None:
    if GIVEN is None:
        pytest.skip("the Dockerfile's commands aren't run: AGENTOS_DEBIAN_ROOT names no directory made by debootstrap")
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", GIVEN, str(root)], check=True)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/host-authorities.crt")  # a proxy's may be among them
    tmp_path.chmod(0o755)
    copy_sources(root)
    made = follow_instructions(root)
    (root / "etc/agentos/agentos.toml").write_text(TREE)

    masked = made.run(["bwrap", "--bind", str(root), "/", *COVERED], "agentos", "doctor")
    doctor = made.run([*OPEN, str(root)], "agentos", "doctor")
    shown = made.run([*OPEN, str(root)], "timeout", "--preserve-status", "10", *made.command)

    assert "docker run --security-opt systempaths=unconfined" in masked
    assert doctor.startswith("standard: all walls; limits by rlimits"), doctor
    assert "once | jailed" in shown
    assert "kernel | stopped" in shown


@define
class Image:
    """What the Dockerfile makes: the environment, the user, the directory and the command of a container."""

    environment: dict[str, str]
    user: str = "root"
    directory: str = "/"
    command: list[str] = field(factory=list)

    def run(self, inside: list[str], *command: str) -> str:
        """Run a command as the image's user; what it prints."""
        as_user = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", "--inh-caps=-all"]
        words = [*inside, "sh", "-ec", f'cd {self.directory}; exec "$@"', "sh", *as_user, *command]
        return subprocess.run(words, env=self.environment, stdout=subprocess.PIPE, text=True, timeout=120).stdout


def follow_instructions(root: Path) -> Image:
    """Run the RUN instructions in ``root``, and collect what the others say; COPY is done already."""
    image = Image({"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PIP_CERT": "/etc/host-authorities.crt"})
    for kind, words in INSTRUCTIONS:
        match kind:
            case "RUN":
                command = [*OPEN, str(root), "sh", "-ec", words]
                done = subprocess.run(command, env=image.environment, capture_output=True, text=True, timeout=900)
                assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
            case "ENV":
                image.environment |= dict(part.split("=", 1) for part in shlex.split(words))
            case "USER":
                image.user = words
            case "WORKDIR":
                image.directory = words
                (root / words.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "ENTRYPOINT" | "CMD":
                image.command += json.loads(words)
    return image
