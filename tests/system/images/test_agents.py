"""Agents that run in an image: declared, with a command of their own or the image's, and with Python in it."""

import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from agentos.images.importer import import_image
from agentos.images.store import Images
from agentos.services.archives import archive
from agentos_sdk import AgentOSClient
from tests.support.images import add_python, make_oci, make_root, tar_root, write_files
from tests.support.kernel import Kernel, running, until
from tests.system.agents import RELAY, ask, in_state, info, lines, up

from .test_images import agentos

TOML = """
[kernel]
image = "tiny"

[[agents]]
name = "shell"
command = ["/bin/sh", "-c", "cat /srv/name; echo $COLOR; pwd; exec sleep 1000"]

[[agents]]
name = "taken"

[[agents]]
name = "strict"
command = ["sh", "-c", "echo x > /srv/name || echo closed; cat /srv/name; exec sleep 1000"]
isolation = "strict"

[[agents]]
name = "python"
script = "{place}/relay.py"
ready = "hello"
image = "python"
permissions = {{ level = "sandboxed", allow = {{ send = ["*"], calls = ["*"] }} }}

[[agents]]
name = "missing"
command = ["sh"]
image = "never"
restart = "temporary"

[[agents]]
name = "pythonless"
script = "{place}/relay.py"
restart = "temporary"

[[agents]]
name = "hosts"
command = ["sleep", "1000"]
image = ""
"""


@pytest.fixture(scope="module")
def layouts() -> Iterator[Path]:
    """OCI layouts ``tiny`` and ``python``, and the script of agents."""
    with tempfile.TemporaryDirectory(prefix="aos-images-", dir="/var/tmp") as made:
        place = Path(made)
        (place / "root").mkdir()
        config = {
            "Cmd": ["sh", "-c", "id -un; pwd; exec sleep 1000"],
            "Env": ["PATH=/bin", "COLOR=green"],
            "User": "app",
        }
        tiny = tar_root(make_root(place / "root"))
        write_files(place / "tiny", make_oci([tiny], {**config, "WorkingDir": "/srv"}, pack=False))
        add_python(place / "root")
        write_files(place / "python", make_oci([tar_root(place / "root")], pack=False))
        (place / "relay.py").write_text(dedent(RELAY))
        yield place


@pytest.fixture(scope="module")
def started(kernels: None, layouts: Path) -> Iterator[Kernel]:
    """A kernel with agents in these images, which were imported beside it."""
    with running(TOML.format(place=layouts)) as kernel:
        images = Images(kernel.state_dir)
        for name in ("tiny", "python"):
            import_image(images, str(layouts / name), name)
        with kernel.client() as client:
            for name in ("shell", "taken", "python"):
                up(client.restart(name))
        yield kernel


def begins(client: AgentOSClient, name: str, *wanted: str) -> None:
    """Wait until the output of an agent ends with these lines."""
    until(lambda: tuple(lines(client, name, "stdout")[-len(wanted) :]) == wanted, f"{name} writes {wanted}")


def test_agents_run_in_their_images(started: Kernel) -> None:
    with started.client() as client:
        begins(client, "shell", "tiny", "green", "/srv")
        begins(client, "taken", "app", "/srv")
        layers = client.inspect("shell")["isolation"]["layers"]
        assert layers["image"]["active"]
        options, _, mount = layers["image"]["evidence"].partition(" ")
        assert {"nodev", "nosuid", "rw"} <= {*options.split(",")}
        assert mount.startswith("overlay image ")
        tiny = Images(started.state_dir).find("tiny")
        assert client.inspect("shell")["image"] == {"name": "tiny", "digest": tiny.digest}
        assert client.inspect("missing")["image"] == {"name": "never", "digest": None}
        assert client.inspect("hosts")["image"] is None
        assert f"image        tiny {tiny.digest}" in agentos(started, "inspect", "shell")
        others = client.inspect("hosts")["isolation"]["layers"]
        assert {name: one["active"] for name, one in layers.items()} == {
            **{name: one["active"] for name, one in others.items()},
            "image": True,
        }

        number = in_state(client, "python", "running")["id"]
        code = "import os, sys; print(sys.executable, os.path.exists('/usr/bin/env'), flush=True)"
        assert ask(client, number, "run", code=code) == "done"
        begins(client, "python", "/usr/local/bin/python3 False")
        answer = ask(client, number, "exec", command=["cat", "/srv/name"])
        assert answer["stdout"].startswith("tiny"), answer

        child = ask(client, number, "spawn", name="child", command=["sh", "-c", "cat /srv/name; exec sleep 1000"])
        assert child["success"], child
        begins(client, "child", "tiny")
        outside = ask(client, number, "spawn", name="other", command=["/usr/bin/env"])
        assert outside["code"] == "not_found"


@pytest.mark.skipif(os.geteuid() != 0, reason="strict needs a uid of the agent's own")
def test_a_strict_agent_has_its_image_read_only(started: Kernel) -> None:
    with started.client() as client:
        up(client.restart("strict"))
        begins(client, "strict", "closed", "tiny")
        layer = client.inspect("strict")["isolation"]["layers"]["image"]
    assert layer["active"]
    assert "ro" in layer["evidence"].split(" ")[0].split(",")


def test_an_image_that_lacks_something_fails_that_agent_with_the_reason(started: Kernel) -> None:
    with started.client() as client:
        for name, reason in (
            ("missing", "there is no image 'never': `agentos image import FILE never` makes it"),
            ("pythonless", "python: the image tiny has no python3: import one that has it"),
        ):
            client.start(name)
            assert reason in info(client, name)["end"]


def test_an_image_in_use_is_not_removed(started: Kernel) -> None:
    assert "uses the image tiny: stop it first" in agentos(started, "image", "rm", "tiny", status=1)
    assert {image.name for image in Images(started.state_dir).list()} == {"tiny", "python"}


def test_what_an_agent_writes_to_its_image_ends_with_its_life(started: Kernel) -> None:
    with started.client() as client:
        write = client.exec(["sh", "-c", "echo changed > /srv/name; cat /srv/name"], name="shell")
        assert write["stdout"] == "changed\n", write
        up(client.restart("shell"))
        begins(client, "shell", "tiny", "green", "/srv")
    [tree] = (path for path in (started.state_dir / "images" / "trees").glob("*/root") if not (path / "usr").exists())
    assert (tree / "srv" / "name").read_text() == "tiny\n"
    assert os.stat(tree / "srv" / "name").st_uid == os.geteuid()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["perl"], "perl: not found in the PATH of its image tiny"),
        (
            ["/usr/bin/env"],
            "/usr/bin/env: No such file or directory (in its image tiny, which has nothing",
        ),
        (["/srv/script"], "its interpreter /usr/bin/python3 isn't there (in its image tiny, which has nothing of"),
    ],
)
def test_a_program_that_the_image_lacks_is_told_with_the_image(
    started: Kernel, command: list[str], expected: str
) -> None:
    make = "echo '#!/usr/bin/python3' > /srv/script; chmod +x /srv/script"
    with started.client() as client:
        up(client.exec(["sh", "-c", make], name="shell"))
        assert expected in client.exec(command, name="shell")["error"]
        if command != ["/srv/script"]:  # what is written to an image is its agent's alone
            assert expected in client.spawn("lacking", command=command, image="tiny")["error"]


def test_an_archive_of_an_agent_names_its_image_and_is_imported_where_that_is(started: Kernel, tmp_path: Path) -> None:
    agentos(started, "export", "taken", str(tmp_path / "a.tar"))
    with tarfile.open(tmp_path / "a.tar") as made:
        manifest = json.loads(made.extractfile("manifest.json").read())  # type: ignore[union-attr]
    assert manifest["image"] == {"name": "tiny", "digest": Images(started.state_dir).find("tiny").digest}

    with started.client() as client:
        up(client.import_agent(path=str(tmp_path / "a.tar"), as_="copy"))
        begins(client, "copy", "app", "/srv")
        assert client.inspect("copy")["image"]["name"] == "tiny"

        for name, also in (("tiny", ", and tiny here has another (sha256:"), ("gone", ": import or pull that one")):
            manifest["image"] = {"name": name, "digest": "sha256:0123"}
            with open(tmp_path / "b.tar", "wb") as file:
                writer = archive.Writer(file)
                writer.add(archive.MANIFEST, json.dumps(manifest).encode())
                writer.finish()
            refused = client.import_agent(path=str(tmp_path / "b.tar"), as_="other")
            assert refused["code"] == "not_found"
            assert f"there is no image with the digest of {name} (sha256:0123){also}" in refused["error"]


def test_a_child_has_the_image_of_its_parent_and_no_other(started: Kernel) -> None:
    with started.client() as client:
        number = in_state(client, "python", "running")["id"]
        other = ask(client, number, "spawn", name="strange", command=["sh"], image="tiny")
    assert other["error"] == "image: its parent python has python, and a child has the same"
