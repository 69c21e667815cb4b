"""Build an image of a Dockerfile: its stages one by one, each in a tree of its own; the last one gets a name.

A program of RUN is given to ``run``, which executes it in a jail whose root is the tree so far. What it writes is kept
apart, and merged into the tree when it has succeeded. The key of a step is a digest of all that it depends on: a stage
begins with the tree of its last RUN that a former build has left. docs/decisions/0115.
"""

import contextlib
import hashlib
import io
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from agentos.images.config import ImageConfig, take_config
from agentos.images.errors import BadArchive
from agentos.images.importer import Said, finish
from agentos.images.owners import Owners, can_hold, read_owners
from agentos.images.store import NAME, NAME_RULE, Image, Images, NewTree
from agentos.images.streams import MAX_READ, Stream, buffered, decompress, naming_damage
from agentos.images.tar import BLOCK, check_sum
from agentos.images.unpack import Amount, Bounds, Unpacking
from agentos.sandbox.host_ids import STORE_IDS
from agentos.services.snapshots import beneath, layers

from . import trees
from .accounts import find_owner, find_user
from .context import MAX_IGNORE, Files, Ignore, Source, write_file
from .dockerfile import BadDockerfile, Dockerfile, Instruction
from .plan import SCRIPT, Copy, Directory, Run, StagePlan, Step, find_image, find_stage, plan_build


class Options(Struct, frozen=True):
    """``arguments`` are values of ARGs, ``target`` the stage to build; ``network`` is what RUN reaches.

    ``root``: without a USER it is root of the image.
    """

    arguments: Mapping[str, str] = {}
    target: str = ""
    network: Sequence[str] = ()
    root: bool = True
    cached: bool = True
    bounds: Bounds = Bounds()


class _Tree(Struct, frozen=True):
    """The tree of a stage: ``top`` is its root, open."""

    new: NewTree
    top: int
    owners: Owners

    @property
    def place(self) -> Path:
        """The directory that it is in."""
        return self.new.root.parent


class _Made(Struct, frozen=True):
    """A stage that is done, and the key of its last step."""

    tree: _Tree
    key: str


class Build:
    """One build. ``run`` executes a program in the image of the given name; ``tell`` gets each instruction, and whether
    it was done before. Both get instructions in their order.
    """

    def __init__(
        self,
        images: Images,
        run: Callable[[Instruction, Run, str], None],
        tell: Callable[[Instruction, bool], None],
        options: Options,
    ) -> None:
        self._images, self._run, self._tell, self._options = images, run, tell, options
        self._made: dict[int, _Made] = {}
        self._dropped: list[str] = []
        self._copied = Amount()  # by all COPYs and ADDs
        self._known: layers.Digests = {}
        self._stamps: dict[int, str] = {}  # by the lines of COPYs, of their files when their digest was made
        self._changed = False  # since then: what follows isn't what its key says, and isn't kept

    def build(self, file: Dockerfile, context: str, name: str) -> Image:
        """Build the target, or the last stage, from a directory. Raises :class:`.BadDockerfile`, ``BadArchive``."""
        try:
            return self._build(file, context, name)
        except (BadArchive, BadDockerfile, OSError):
            self._images.make_room()
            raise

    def _build(self, file: Dockerfile, context: str, name: str) -> Image:
        if not NAME.fullmatch(name):
            raise BadArchive(f"NAME: expected {NAME_RULE}, got {name!r}")
        plans = plan_build(file, self._images, self._options.arguments, self._options.target, self._options.root)
        with contextlib.ExitStack() as stack, beneath.open_top(os.path.realpath(context)) as top:
            files = Files(top, self._options.bounds, self._known, _read_ignore(top))
            self._check_sources(plans, files)
            for plan in plans:
                new = stack.enter_context(self._images.make())
                root = os.open(new.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, root)
                tree = _Tree(new, root, Owners())
                self._made[plan.number] = _Made(tree, self._build_stage(file, plan, tree, files))
            return self._finish(tree, name, plans[-1])

    def _check_sources(self, plans: Sequence[StagePlan], files: Files) -> None:
        """What isn't there is said before anything is run."""
        for plan in plans:
            for step in plan.steps:
                if isinstance(step.act, Copy) and not step.act.origin:
                    with _naming(step.one):
                        files.find(step.act.words)

    def _build_stage(self, file: Dockerfile, plan: StagePlan, tree: _Tree, files: Files) -> str:
        """Fill a tree. Returns the key of the last step."""
        with contextlib.ExitStack() as stack:
            origins = {
                step.act.origin: stack.enter_context(self._open_origin(file, plan.number, step.act.origin, files))
                for step in plan.steps
                if isinstance(step.act, Copy)
            }
            keys = self._make_keys(plan, origins)
            done = self._begin(plan, keys, tree)
            self._tell(plan.stage.begin, done > 0)
            for place, (step, key) in enumerate(zip(plan.steps, keys[1:], strict=True), 1):
                self._tell(step.one, place <= done)
                if place > done:
                    with _naming(step.one):
                        self._do(step, key, tree, origins)
        return keys[-1]

    def _make_keys(self, plan: StagePlan, origins: Mapping[str, Files]) -> list[str]:
        """The keys of what the stage begins with and of each step."""
        base = plan.base
        begin: object = (base.digest, base.config, "owners") if isinstance(base, Image) else base
        keys = [_make_key("", self._made[base].key if isinstance(base, int) else begin)]
        for step in plan.steps:
            act = step.act
            parts: tuple[object, ...] = (act,)
            if isinstance(act, Run):
                parts = ("RUN", act, self._options.network)
            elif isinstance(act, Copy):
                with _naming(step.one):
                    found = origins[act.origin].find(act.words)
                    if not act.origin:
                        self._stamps[step.one.line] = origins[""].stamp(found)
                    parts = (
                        step.one.keyword,
                        msgspec.structs.replace(act, origin=""),
                        origins[act.origin].digest(found),
                    )
            keys.append(_make_key(keys[-1], *parts) if act is not None else keys[-1])
        return keys

    def _begin(self, plan: StagePlan, keys: Sequence[str], tree: _Tree) -> int:
        """Fill the tree with what the stage begins with, or what a former build has left. Returns the steps done."""
        for place in range(len(plan.steps), 0, -1):
            if self._options.cached and isinstance(plan.steps[place - 1].act, Run):
                with self._images.open_step(keys[place]) as kept:
                    if kept is not None:
                        _begin_with(kept, tree)
                        return place
        if isinstance(plan.base, int):
            former = self._made[plan.base].tree
            trees.clone(former.top, tree.top)
            tree.owners.become(former.owners)
        elif plan.base is not None:
            with _open_image(self._images, plan.base.name, plan.base.digest) as found:
                _begin_with(found, tree)
        return 0

    @contextlib.contextmanager
    def _open_origin(self, file: Dockerfile, number: int, origin: str, files: Files) -> Iterator[Files]:
        stage = find_stage(file.stages[:number], origin) if origin else None
        if not origin:
            yield files
        elif stage is not None:
            former = self._made[stage].tree
            yield Files(former.top, self._options.bounds, self._known, owners=former.owners)
        else:
            name = find_image(self._images, origin).name
            with _open_image(self._images, name) as place, beneath.open_top(str(place / "root")) as top:
                yield Files(top, self._options.bounds, self._known, owners=read_owners(place))

    def _do(self, step: Step, key: str, tree: _Tree, origins: Mapping[str, Files]) -> None:
        match step.act:
            case Run():
                self._run_program(step.one, step.act, tree)
                if self._changed:
                    return
                with self._images.make() as kept:
                    with beneath.open_top(str(kept.root.resolve())) as top:
                        trees.clone(tree.top, top)
                    tree.owners.save(kept.root.parent)
                    self._images.keep_step(key, kept)
            case Copy():
                files = origins[step.act.origin]
                self._copy(step.act, tree, files)
                if not step.act.origin:
                    self._changed |= files.stamp(files.find(step.act.words)) != self._stamps[step.one.line]
            case Directory():
                made: list[str] = []
                trees.make_directories(tree.top, step.act.path, made)
                for path in made:
                    tree.owners.note(path, *(find_user(tree.top, step.act.owner) or (0, 0)))
            case None:
                pass

    def _run_program(self, one: Instruction, act: Run, tree: _Tree) -> None:
        root, upper, name = tree.top, tree.place / "upper", f"build-{tree.new.id}"
        trees.make_directories(root, act.directory)
        for directory in (upper, upper / "tree", upper / "work"):
            directory.mkdir(mode=0o755)
            if act.is_root and os.geteuid() == 0:  # what root inside writes belongs to ids that no process has
                os.chown(directory, STORE_IDS[0], STORE_IDS[0])
        if act.script:
            _write_text(root, SCRIPT.lstrip("/"), act.script, 0o755)
        if act.is_root and can_hold():
            tree.owners.lay_over(root, tree.place)
        self._images.name(
            Image(
                name, digest="", format="dockerfile", layers=0, bytes=0, entries=0, made=0.0, tree=tree.new.id,
                directories=(), files=(), config=ImageConfig(user=act.user), building=True,
            )
        )  # fmt: skip
        try:
            self._run(one, act, name)
        finally:
            self._images.forget(name)
        if act.script:
            os.unlink(SCRIPT.lstrip("/"), dir_fd=root)
        with beneath.open_top(str((upper / "tree").resolve())) as changed:
            user = None if act.is_root else find_user(root, act.owner) or (0, 0)
            self._dropped += trees.merge(changed, root, tree.owners, user)
        with beneath.open_top(str(tree.place.resolve())) as place:
            beneath.remove_tree(place, "upper")

    def _copy(self, act: Copy, tree: _Tree, files: Files) -> None:
        root, target = tree.top, act.target
        ids = find_owner(root, act.owner) if act.owner else None
        if act.owner and ids is None:
            raise BadArchive(f"--chown={act.owner}: /etc/passwd and /etc/group of the image so far have no such name")
        for source in files.find(act.words, self._copied):
            if act.unpacks and not source.is_directory and self._unpack(files, source, tree, target, ids):
                continue
            place = target
            if not source.is_directory and (target.endswith("/") or _is_directory(root, target)):
                place = f"{target.rstrip('/')}/{source.name}"
            for path, copied in files.copy(source, root, place, act.mode).items():
                owner = files.owners.find(copied)
                bits = owner.bits if act.mode is None else 0
                tree.owners.note(path, *(ids or (owner.uid, owner.gid)), bits, owner.capability)
        for name, text in act.texts.items():
            place = f"{target.rstrip('/')}/{name}" if target.endswith("/") or _is_directory(root, target) else target
            above, _, last = place.rpartition("/")
            made: list[str] = []
            real = f"{trees.make_directories(root, above, made)}/{last}".lstrip("/")
            _write_text(root, real, text, act.mode if act.mode is not None else 0o644)
            for path in (*made, real):
                tree.owners.note(path, *(ids or (0, 0)))

    def _unpack(self, files: Files, source: Source, tree: _Tree, target: str, ids: tuple[int, int] | None) -> bool:
        """Unpack a tar archive, compressed or not; whether it is one."""
        with beneath.open_file(files.top, source.path) as file, open(file, "rb", MAX_READ, closefd=False) as raw:
            plain = decompress(raw, source.name)  # type: ignore[arg-type]
            data = plain if plain is raw else buffered(plain)  # type: ignore[arg-type]
            try:
                with naming_damage(source.name):
                    begin = data.peek(BLOCK)[:BLOCK]  # type: ignore[attr-defined]
            except BadArchive:  # it only begins as packed data does
                return False
            if len(begin) < BLOCK or not _is_archive(begin):
                return False
            made: list[str] = []
            real = trees.make_directories(tree.top, target, made)
            for path in made:
                tree.owners.note(path, *(ids or (0, 0)))
            with beneath.open_directory(tree.top, real) as top:
                unpacking = Unpacking(top, self._options.bounds, tree.owners, real, self._copied)
                try:
                    unpacking.add_layer(Stream(data, source.name, self._options.bounds.size, hashed=False))
                    unpacking.finish()
                finally:
                    unpacking.close()
        return True

    def _finish(self, tree: _Tree, name: str, plan: StagePlan) -> Image:
        config, left_out = take_config(plan.state.describe())
        tree.owners.prune(tree.top)
        files = f"{layers.compute_seal(tree.top, self._known).digest}{tree.owners.digest()}"
        digest = hashlib.sha256(files.encode() + msgspec.json.encode(config)).hexdigest()
        dropped = [f"FIFOs, sockets and devices aren't taken: {', '.join(self._dropped[:5])}"] if self._dropped else []
        sentences = (*left_out, *plan.state.told, *dropped)
        said = Said(f"sha256:{digest}", "dockerfile", 1, config, sentences)
        return finish(self._images, tree.new, name, said, tree.owners)


def _begin_with(place: Path, tree: _Tree) -> None:
    """Fill an empty tree with that in a directory of the store."""
    with beneath.open_top(str(place / "root")) as top:
        trees.clone(top, tree.top)
    tree.owners.become(read_owners(place))


def _make_key(*parts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _read_ignore(top: int) -> Ignore | None:
    try:
        with beneath.open_file(top, ".dockerignore") as file:
            text = os.read(file, MAX_IGNORE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadArchive(f".dockerignore: {error.strerror}") from None
    if len(text) > MAX_IGNORE:
        raise BadArchive(f".dockerignore: more than {MAX_IGNORE} bytes")
    return Ignore(text.decode(errors="replace"))


@contextlib.contextmanager
def _open_image(images: Images, name: str, digest: str | None = None) -> Iterator[Path]:
    """The directory with an image's tree."""
    opened = images.open(name)
    try:
        if digest not in (None, opened.image.digest):
            raise BadArchive(f"the image {name} was replaced during the build: build again")
        yield Path(os.path.realpath(opened.path)).parent
    finally:
        opened.close()


def _is_directory(root: int, path: str) -> bool:
    try:
        found = beneath.look(root, trees.resolve(root, path) or ".")
    except OSError:
        return False
    return found is not None and stat.S_ISDIR(found.st_mode)


def _is_archive(begin: bytes) -> bool:
    try:
        check_sum(begin, Stream(io.BytesIO(), "", 0, hashed=False))
    except BadArchive:
        return False
    return True


def _write_text(root: int, path: str, text: str, mode: int) -> None:
    with tempfile.TemporaryFile() as file, beneath.open_parent(root, path) as (above, name):
        file.write(text.encode())
        file.seek(0)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=above)
        write_file(above, name, file.fileno(), mode, (0, 0))


@contextlib.contextmanager
def _naming(one: Instruction) -> Iterator[None]:
    """Have errors of files name the instruction."""
    try:
        yield
    except BadArchive as error:
        raise one.fail(str(error)) from None
    except OSError as error:
        raise one.fail(f"{error.filename or 'its files'}: {error.strerror}") from None
