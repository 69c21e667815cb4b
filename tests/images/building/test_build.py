"""Builds without a RUN: trees of Dockerfiles of different kinds, and directories and Dockerfiles that do harm."""

import bz2
import gzip
import io
import lzma
import os
import socket
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from agentos.images import store as store_module
from agentos.images.building.build import Build, Options
from agentos.images.building.context import MAX_IGNORE, TICK, Ignore
from agentos.images.building.dockerfile import BadDockerfile, Instruction, parse
from agentos.images.building.plan import Run
from agentos.images.building.state import DEFAULT_PATH
from agentos.images.errors import BadArchive
from agentos.images.importer import import_image
from agentos.images.store import Image, Images
from agentos.images.unpack import Bounds
from agentos.userland.cli.main import cli
from tests.support.images import DIRECTORY, LINK, entry, make_tar
from tests.support.kernel import until

BASE = make_tar(
    [
        entry("bin/", mode=0o755),
        entry("bin/tool", b"tool", mode=0o755),
        entry("etc/", mode=0o755),
        entry("sbin", kind=LINK, target="/bin"),
        entry("srv/deep/file", b"file"),
        entry("out", kind=LINK, target="../../../../etc"),
        entry("tmp", kind=DIRECTORY, mode=0o1777),
    ]
)
OF_BASE = {
    "etc": "d755",
    "bin": "d755",
    "bin/tool": "755 tool",
    "sbin": "-> /bin",
    "srv": "d755",
    "srv/deep": "d755",
    "tmp": "d1777",
}
OF_BASE |= {"srv/deep/file": "644 file", "out": "-> ../../../../etc"}


@pytest.fixture
def store(tmp_path: Path) -> Images:
    (tmp_path / "base.tar").write_bytes(BASE)
    images = Images(tmp_path / "state")
    (tmp_path / "state").mkdir(mode=0o700)
    import_image(images, str(tmp_path / "base.tar"), "base-1")
    return images


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A directory to build from."""
    place = tmp_path / "context"
    for directory in ("app/sub", "app/node_modules/x", "logs"):
        (place / directory).mkdir(parents=True)
    for path in (
        "a.txt",
        "b.txt",
        "app/main.py",
        "app/sub/more.py",
        "app/node_modules/x/y.js",
        "logs/1.log",
        "logs/keep.log",
    ):
        (place / path).write_text(path)
        (place / path).chmod(0o644)
    (place / "app" / "main.py").chmod(0o755)
    os.symlink("main.py", place / "app" / "link")
    (place / ".dockerignore").write_text("# c\n**/node_modules\nlogs/*\n!logs/keep.log\nDockerfile\n")
    with tarfile.open(place / "files.tar.gz", "w:gz") as tar:
        info, data = entry("in/tar.txt", b"packed", mode=0o600)
        tar.addfile(info, io.BytesIO(data))
    plain = gzip.decompress((place / "files.tar.gz").read_bytes())
    for name, pack in (("files.tar.xz", lzma.compress), ("files.tar.bz2", bz2.compress)):
        (place / name).write_bytes(pack(plain))
    for name, text in (("no.gz", b"\x1f\x8b"), ("no.xz", b"\xfd7zXZ\0\0\0"), ("no.bz2", b"BZh9x")):
        (place / name).write_bytes(text)
        (place / name).chmod(0o644)
    (place / "open" / "all").mkdir(parents=True)
    for each in (place, *place.rglob("*")):
        if each.is_dir():
            each.chmod(0o1777 if each.name == "all" else 0o755)
    return place


def never(one: Instruction, act: Run, image: str) -> None:
    raise AssertionError(f"nothing may be run: {one.shown}")


def build(store: Images, context: Path, text: str, **options: object) -> Image:
    made = Build(store, never, lambda one, cached: None, Options(**options))  # type: ignore[arg-type]
    return made.build(parse(text), str(context), "made")


def tree(store: Images, name: str) -> dict[str, str]:
    """Each path of an image, with its mode and content or target."""
    opened = store.open(name)
    try:
        top, found = Path(opened.path), {}
        for path in sorted(top.rglob("*")):
            mode = stat.S_IMODE(path.lstat().st_mode)
            if path.is_symlink():
                found[str(path.relative_to(top))] = f"-> {os.readlink(path)}"
            else:
                found[str(path.relative_to(top))] = (
                    f"d{mode:o}" if path.is_dir() else f"{mode:o} {path.read_text('latin-1')}"
                )
        return found
    finally:
        opened.close()


TREES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "a file beside what the base has": (
        "FROM base:1\nCOPY a.txt /srv/\n",
        {**OF_BASE, "srv/a.txt": "644 a.txt"},
    ),
    "a file under another name, in directories that are made": (
        "FROM scratch\nCOPY a.txt /x/y/z\n",
        {"x": "d755", "x/y": "d755", "x/y/z": "644 a.txt"},
    ),
    "several files, and a pattern": (
        'FROM scratch\nCOPY ["a.txt", "b.txt", "/one/"]\nCOPY ?.txt app/*.py /two/\n',
        {"one": "d755", "one/a.txt": "644 a.txt", "one/b.txt": "644 b.txt", "two": "d755", "two/a.txt": "644 a.txt"}
        | {"two/b.txt": "644 b.txt", "two/main.py": "755 app/main.py"},
    ),
    "the content of a directory without what is ignored": (
        "FROM scratch\nWORKDIR /w\nCOPY app .\n",
        {"w": "d755", "w/link": "-> main.py", "w/main.py": "755 app/main.py", "w/sub": "d755"}
        | {"w/sub/more.py": "644 app/sub/more.py"},
    ),
    "an exception of .dockerignore": (
        "FROM scratch\nCOPY logs /logs\n",
        {"logs": "d755", "logs/keep.log": "644 logs/keep.log"},
    ),
    "through a link of the base, which leads within it": (
        "FROM base-1\nCOPY a.txt /sbin/\nCOPY a.txt /out/passwd\n",
        {**OF_BASE, "bin/a.txt": "644 a.txt", "etc/passwd": "644 a.txt"},
    ),
    "a mode for all": (
        "FROM scratch\nCOPY --chmod=0500 app/sub /s\n",
        {"s": "d500", "s/more.py": "500 app/sub/more.py"},
    ),
    "a mode for all, but for a directory that is there": (
        "FROM scratch\nCOPY a.txt /s/\nCOPY --chmod=0500 app/sub /s\n",
        {"s": "d755", "s/a.txt": "644 a.txt", "s/more.py": "500 app/sub/more.py"},
    ),
    "a directory for all, below one that is copied": (
        "FROM scratch\nCOPY open /o\nCOPY open /o/\n",
        {"o": "d755", "o/all": "d1777"},
    ),
    "archives of two other packers, and what only begins as one": (
        "FROM scratch\nADD files.tar.xz /x/\nADD files.tar.bz2 /b/\nADD no.gz no.xz no.bz2 /n/\n",
        {"x": "d755", "x/in": "d755", "x/in/tar.txt": "600 packed", "b": "d755", "b/in": "d755"}
        | {
            "b/in/tar.txt": "600 packed",
            "n": "d755",
            "n/no.gz": "644 \x1f\x8b",
            "n/no.xz": "644 \xfd7zXZ\0\0\0",
            "n/no.bz2": "644 BZh9x",
        },
    ),
    "an archive that ADD unpacks and COPY doesn't": (
        "FROM scratch\nADD files.tar.gz /u/\nADD a.txt /u/\n",
        {"u": "d755", "u/in": "d755", "u/in/tar.txt": "600 packed", "u/a.txt": "644 a.txt"},
    ),
    "two stages, of which one isn't needed": (
        "FROM base-1 AS one\nWORKDIR /d\nCOPY a.txt .\nFROM base-1 AS two\nRUN never\n"
        "FROM scratch\nCOPY --from=one /d/a.txt /\nCOPY --from=0 /sbin/tool /t\nCOPY --from=base-1 /srv /srv\n",
        {"a.txt": "644 a.txt", "t": "755 tool", "srv": "d755", "srv/deep": "d755", "srv/deep/file": "644 file"},
    ),
    "a stage that goes on with another one": (
        "FROM scratch AS one\nENV D=/one\nWORKDIR $D\nFROM one\nCOPY a.txt b\n",
        {"one": "d755", "one/b": "644 a.txt"},
    ),
    "heredocs with variables": (
        "ARG V=2\nFROM scratch\nARG V\nENV N=x\nCOPY <<A <<'B' /$N/\n'$V' ${N}\nA\n$V\nB\n"
        "COPY --chmod=755 <<C /s\nc\nC\n",
        {"x": "d755", "x/A": "644 '2' x\n", "x/B": "644 $V\n", "s": "755 c\n"},
    ),
    "a file in the place of a file, and in the directory that a link leads to": (
        "FROM base-1\nCOPY app/link /srv/deep/file\nCOPY a.txt /out\nCOPY b.txt /bin/tool\n",
        {**OF_BASE, "srv/deep/file": "755 app/main.py", "etc/a.txt": "644 a.txt", "bin/tool": "644 b.txt"},
    ),
}


@pytest.mark.parametrize("case", TREES)
def test_each_kind_of_dockerfile_makes_its_tree(case: str, store: Images, context: Path) -> None:
    text, expected = TREES[case]

    build(store, context, text)

    assert tree(store, "made") == dict(expected)
    assert tree(store, "base-1") == OF_BASE


def test_the_configuration_is_that_of_the_base_with_what_the_dockerfile_says(store: Images, context: Path) -> None:
    text = (
        'FROM base-1\nARG V=1\nENV A=a B="b $A"\nENV C=$A$V\nWORKDIR /srv\nWORKDIR deep\nUSER app:app\n'
        'SHELL ["/bin/bash", "-c"]\nCMD tool --now\nLABEL x=y\nEXPOSE 80\nVOLUME /v\nHEALTHCHECK CMD x\n'
    )
    made = build(store, context, text, arguments={"V": "3"})
    assert dict(made.config.env).items() >= {"A": "a", "B": "b ", "C": "a3"}.items()
    assert (made.config.working_dir, made.config.user) == ("/srv/deep", "app")
    assert made.config.cmd == ("/bin/bash", "-c", "tool --now")
    assert {"line 10: LABEL isn't taken: x=y", "line 11: EXPOSE isn't taken: 80"} <= {*made.left_out}
    assert any(sentence.startswith("VOLUME isn't taken") for sentence in made.left_out)
    assert build(store, context, "FROM made\n").config == made.config
    assert build(store, context, "FROM made\nENTRYPOINT x\n").config.cmd == ()
    assert build(store, context, 'FROM made\nENTRYPOINT []\nCMD ["y"]\n').config.cmd == ("y",)
    assert build(store, context, 'FROM scratch\nARG A="1 2" B=3\nENV C=$A$B\n').config.env["C"] == "1 23"


def test_an_arg_has_the_value_asked_for_or_its_own_or_that_before_the_first_from(store: Images, context: Path) -> None:
    text = "ARG A=first\nARG B=first\nFROM base-$A\nARG A\nARG B=own\nARG TARGETOS=mine\nENV A=$A B=$B T=$TARGETOS\n"
    asked = {"A": "1", "B": "asked"}
    assert build(store, context, text, arguments=asked).config.env.items() >= asked.items()
    text = text.replace("base-$A", "base-1")
    assert build(store, context, text).config.env.items() >= {"A": "first", "B": "own", "T": "mine"}.items()


def test_a_path_is_added_to_the_usual_one_where_the_base_has_none(store: Images, context: Path) -> None:
    made = build(store, context, "FROM base-1\nENV PATH=/opt/bin:$PATH\n")
    assert made.config.env == {"PATH": f"/opt/bin:{DEFAULT_PATH}"}
    assert build(store, context, "FROM made\nENV PATH=/x:$PATH\n").config.env["PATH"] == f"/x:/opt/bin:{DEFAULT_PATH}"


def test_the_digest_is_that_of_the_files_and_the_configuration(store: Images, context: Path) -> None:
    text = "FROM scratch\nCOPY a.txt /\n"
    first = build(store, context, text)
    assert build(store, context, text).digest == first.digest
    assert build(store, context, f"{text}ENV A=b\n").digest != first.digest
    (context / "a.txt").write_text("other")
    assert build(store, context, text).digest != first.digest


REFUSED = {
    "an image that isn't here": (
        "FROM python:3.12",
        "line 1: FROM: there is no image 'python:3.12': `agentos image pull",
    ),
    "no such file": ("FROM base-1\nRUN x\nCOPY none /", "line 3: COPY: none: No such file or directory"),
    "what is ignored": (
        "FROM base-1\nRUN x\nCOPY logs/1.log /",
        "line 3: COPY: logs/1.log: there is nothing of that name",
    ),
    "out of the directory": ("FROM base-1\nRUN x\nCOPY ../x /", "line 3: COPY: ../x has .. in its path"),
    "from the network": (
        "FROM base-1\nRUN x\nADD https://x.example/y /",
        "line 3: ADD: https://x.example/y: only local",
    ),
    "a stage that comes later": ("FROM base-1\nCOPY --from=2 a /", "line 2: COPY: --from=2: no stage before it"),
    "an agent's own directory": ("FROM base-1\nCOPY a.txt /workspace/", "line 2: COPY: /workspace: an agent has"),
    "the same by WORKDIR": ("FROM base-1\nRUN x\nWORKDIR /proc/x", "line 3: WORKDIR: /proc/x: an agent has a /proc"),
    "a variable of the kernel's": (
        "FROM base-1\nRUN x\nENV AGENTOS_X=1",
        "line 3: ENV: expected the name of a variable",
    ),
    "a mode that is none": ("FROM base-1\nRUN x\nCOPY --chmod=u+x a.txt /", "line 3: COPY: --chmod=u+x: expected"),
    "set-id bits": ("FROM base-1\nRUN x\nCOPY --chmod=4755 a.txt /", "line 3: COPY: --chmod=4755: expected"),
    "several files for one": ("FROM base-1\nRUN x\nCOPY a.txt b.txt /x", "line 3: COPY: /x: with several sources"),
    "another machine's": ("FROM --platform=linux/mips base-1", "line 1: FROM: --platform=linux/mips isn't supported"),
    "a platform by what is known": (
        "ARG P=$TARGETOS/mips\nFROM --platform=$P base-1",
        "line 2: FROM: --platform=linux/mips isn't supported",
    ),
    "a link out of it": ("FROM base-1\nCOPY out /x", "line 2: COPY: out: No such file or directory"),
    "a link out of it on the way": ("FROM base-1\nCOPY host/passwd /x", "line 2: COPY: host/passwd: No such file"),
    "a pattern that is none": ("FROM base-1\nRUN x\nCOPY [z-a] /x", "line 3: COPY: [z-a]: bad character range z-a"),
    "a FIFO": ("FROM base-1\nCOPY fifo /x", "line 2: COPY: fifo is a device, a FIFO or a socket"),
    "a socket in a directory": ("FROM base-1\nCOPY odd /x", "line 2: COPY: odd/socket is a device, a FIFO or a socket"),
    "a file of any size": ("FROM base-1\nCOPY huge /x", "line 2: COPY: huge: with it more than"),
    "a directory of links to itself": ("FROM base-1\nCOPY loop/loop2 /x", "line 2: COPY: loop/loop2: Too many levels"),
    "a damaged archive": ("FROM base-1\nADD cut.tar /x/", "line 2: ADD: cut.tar: it is cut within in/tar.txt"),
    "an archive that reaches out": (
        "FROM base-1\nADD evil.tar /x/",
        "line 2: ADD: evil.tar: ../evil has .. in its path",
    ),
    "a bomb": ("FROM base-1\nADD bomb.gz /x/", "line 2: ADD: bomb.gz: with zeros it has more than"),
    "links to one directory": ("FROM base-1\nCOPY many/link-* /x/", "line 2: COPY: many/all/half: with it more than"),
    "one file by many words": (
        "FROM base-1\nCOPY many/all/half* many/*/half many/all/h* /x/",
        "line 2: COPY: many/all",
    ),
    "one file by many instructions": (
        "FROM base-1\nCOPY many/all /x\nCOPY many/all /y\nADD many/all /z\n",
        "line 4: ADD: many/all/half: with it more than",
    ),
    "an archive by many instructions": (
        "FROM base-1\nADD half.tar.gz /x/\nADD half.tar.gz /y/\nADD half.tar.gz /z/\n",
        "line 4: ADD: half.tar.gz: with half it has more than",
    ),
    "a directory below itself": ("FROM base-1\n" + f"WORKDIR {'d/' * 500}\n" * 5, "line 6: WORKDIR: /d/d"),
    "a directory of many bytes": ("FROM base-1\nWORKDIR " + "é/" * 1500, "line 2: WORKDIR: /é/é"),
    "many variables": (
        "FROM base-1\n" + f"ENV {' '.join(f'A{n}=1' for n in range(997))}\nENV A1=2\nENV B=1 C=2\nENV D=4 E=5",
        "line 5: ENV: with it there are more than 1000 variables",
    ),
    "many instructions": ("FROM base-1\n" + "USER a\n" * 1000, "line 1001: USER: a Dockerfile may have 1000"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_built_is_refused_with_its_line_and_nothing_is_run_or_left(
    case: str, store: Images, context: Path, tmp_path: Path
) -> None:
    text, expected = REFUSED[case]
    (context / "odd").mkdir()
    os.mkfifo(context / "fifo")
    (context / "loop").mkdir()
    os.symlink("loop2", context / "loop" / "loop2")
    os.symlink("/etc/passwd", context / "out")
    os.symlink("/etc", context / "host")
    with open(context / "huge", "wb") as file:
        file.truncate(1 << 40)
    (context / "many" / "all").mkdir(parents=True)
    (context / "many" / "all" / "half").write_bytes(bytes(900_000))
    for number in range(3):
        os.symlink("all", context / "many" / f"link-{number}")
    (context / "half.tar.gz").write_bytes(gzip.compress(make_tar([entry("half", bytes(900_000))])))
    whole = make_tar([entry("in/tar.txt", b"x" * 5000)])
    (context / "cut.tar").write_bytes(whole[:2000])
    (context / "evil.tar").write_bytes(make_tar([entry("../evil", b"x")]))
    (context / "bomb.gz").write_bytes(gzip.compress(make_tar([entry("zeros", bytes(3 << 20))])))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(context / "odd" / "socket"))
        before = sorted(os.listdir(tmp_path / "state" / "images" / "trees"))

        with pytest.raises((BadDockerfile, BadArchive)) as error:
            build(store, context, text, bounds=Bounds(size=2 << 20))

    assert str(error.value).startswith(expected)
    assert sorted(os.listdir(tmp_path / "state" / "images" / "trees")) == before
    assert [image.name for image in store.list()] == ["base-1"]


@pytest.mark.parametrize(
    ("rules", "path", "hidden"),
    [
        ("*.md", "a.md", True),
        ("*.md", "x/a.md", False),
        ("**/*.md", "x/y/a.md", True),
        ("x", "x/y/z", True),
        ("x\n!x/y", "x/y/z", False),
        ("!x\nx", "x", True),
        ("/x/", "x", True),
        ("a[bc]d?", "abdx", True),
        ("a[^b]d", "abd", False),
        ("# x\n\n", "# x", False),
        ("a**/**/*b*c", "ax/y/zb1c/d", True),
        ("**/a*c/**/**/e", "x/abc/d/e", True),
        ("**/a*c/**/e", "x/ab/c/e", False),
        ("[&&~~]", "&", True),
        ("[^a-c]x", "/x", False),
        ("*a[b", "aa[b", True),
    ],
)
def test_the_last_rule_that_matches_a_path_or_one_above_it_decides(rules: str, path: str, hidden: bool) -> None:
    assert Ignore(rules).hides(path) is hidden


def test_a_dockerignore_has_an_end(store: Images, context: Path) -> None:
    assert Ignore("a\n" * 1000).hides("a")
    with pytest.raises(BadArchive, match="more than 1000 patterns"):
        Ignore("a\n" * 1001)

    (context / ".dockerignore").write_text("#" * MAX_IGNORE)
    build(store, context, "FROM scratch\nCOPY a.txt /\n")
    (context / ".dockerignore").write_text("#" * (MAX_IGNORE + 1))
    with pytest.raises(BadArchive, match=f"more than {MAX_IGNORE} bytes"):
        build(store, context, "FROM scratch\nCOPY a.txt /\n")


HOSTILE = ["*a" * 40 + "b", "**a" * 40 + "b", "**/a*/" * 20 + "*b", "*?" * 100 + "b", "**/" * 60 + "b"]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    """Linux ends it after 20 seconds of a processor."""
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "from agentos.images.building.context import TICK, Ignore\n"
        "paths = 'a' * 255, 'a' * 4000, 'a/' * 2000, 'aaaaaaa/' * 400\n"
        "assert not any(map(Ignore(sys.argv[1]).hides, paths))"
    )
    assert subprocess.run([sys.executable, "-W", "error", "-c", program, pattern], check=False).returncode == 0


def test_a_file_of_holes_is_read_once_and_its_copies_are_holes(store: Images, context: Path) -> None:
    size = 32 << 20
    os.truncate(context / "a.txt", size)
    made = (context / "a.txt").stat().st_ctime_ns
    until(lambda: time.time_ns() > made + 2 * TICK, "the file has a stamp of its own")
    before = count_read()

    build(store, context, "FROM scratch AS one\nCOPY a.txt /\nFROM scratch\nCOPY --from=one a.txt /b\n")

    assert count_read() - before < 2 * size
    opened = store.open("made")
    copy = (Path(opened.path) / "b").stat()
    opened.close()
    assert (copy.st_size, copy.st_blocks < 100) == (size, True)


def count_read() -> int:
    """The bytes that this process has read, also from memory."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_files_that_change_during_a_build_are_in_no_step_that_is_kept(store: Images, context: Path) -> None:
    ran: list[str] = []

    def run(one: Instruction, act: Run, image: str) -> None:
        ran.append(one.rest)
        if one.rest == "change":
            (context / "a.txt").write_text("changed")

    def build_again() -> str:
        text = (
            "FROM base-1\nRUN change\nCOPY a.txt /\nRUN after\nFROM scratch\nCOPY --from=0 /a.txt /b\nCOPY b.txt /a\n"
        )
        Build(store, run, lambda one, cached: None, Options()).build(parse(text), str(context), "made")
        return tree(store, "made")["b"]

    assert build_again() == "644 changed"
    (context / "a.txt").write_text("a.txt")
    assert build_again() == "644 a.txt"
    assert build_again() == "644 a.txt"
    assert ran == ["change", "after", "after"]


def test_a_base_that_is_replaced_during_a_build_is_not_taken_for_the_former(
    store: Images, context: Path, tmp_path: Path
) -> None:
    def tell(one: Instruction, cached: bool) -> None:
        if one.keyword == "COPY":
            (tmp_path / "base.tar").write_bytes(make_tar([entry("other", b"")]))
            import_image(store, str(tmp_path / "base.tar"), "base-1")

    with pytest.raises(
        (BadArchive, BadDockerfile), match="the image base-1 was replaced during the build: build again"
    ):
        Build(store, never, tell, Options()).build(
            parse("FROM scratch\nCOPY a.txt /\nFROM base-1\nCOPY --from=0 a.txt /\n"), str(context), "made"
        )


def test_the_files_of_a_jail_stay_when_its_build_was_killed(store: Images, tmp_path: Path) -> None:
    with store.make() as new:
        for directory in ("upper", "upper/tree"):
            (new.root.parent / directory).mkdir()
        record = msgspec.structs.replace(store.find("base-1"), name="build-1", tree=new.id, building=True)
        store.name(record)
        jail = store.open("build-1")

    assert (new.root.parent / "upper" / "tree").is_dir()

    jail.close()
    store.collect()
    assert not new.root.parent.exists()
    assert [path.name for path in (tmp_path / "state" / "images").glob("*.json")] == ["base-1.json"]


def test_steps_that_were_not_used_lately_are_removed_with_their_trees(store: Images, tmp_path: Path) -> None:
    keys = ["old", "new"]
    for key in keys:
        with store.make() as new:
            store.keep_step(key, new)
        if key == "old":
            os.utime(tmp_path / "state" / "images" / "cache" / "old.json", (0, 0))
    store.collect()
    with store.open_step("old") as old, store.open_step("new") as kept:
        assert (old, kept is not None) == (None, True)
    assert len(os.listdir(tmp_path / "state" / "images" / "trees")) == 2


def test_a_step_that_its_build_still_holds_is_as_one_that_is_not_there(store: Images) -> None:
    with store.make() as new:
        store.keep_step("held", new)
        with store.open_step("held") as held:
            assert held is None
    with store.open_step("held") as kept:
        assert kept is not None


@pytest.mark.parametrize("is_full", [False, True])
def test_a_build_that_fails_on_a_full_disk_keeps_no_steps(
    is_full: bool, store: Images, context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.make() as new:
        store.keep_step("kept", new)
    monkeypatch.setattr(store_module, "LITTLE", sys.maxsize if is_full else 0)

    with pytest.raises(BadDockerfile):
        build(store, context, "FROM base-1\nCOPY none /\n")

    with store.open_step("kept") as kept:
        assert (kept is None) == is_full


@pytest.mark.parametrize("kind", ["FIFO", "link"])
def test_a_dockerfile_in_an_agents_directory_is_no_fifo_and_no_link_out_of_it(tmp_path: Path, kind: str) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (tmp_path / "secret").write_text("SECRET")
    if kind == "FIFO":
        os.mkfifo(context / "Dockerfile")
    else:
        (context / "Dockerfile").symlink_to(tmp_path / "secret")

    done = CliRunner().invoke(cli, ["image", "build", str(context), "-t", "x", "--state-dir", str(tmp_path / "state")])

    why = "not a regular file" if kind == "FIFO" else "No such file or directory"
    assert (done.exit_code, done.output) == (1, f"agentos: x wasn't made: {context}/Dockerfile: {why}\n")
