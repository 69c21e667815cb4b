"""Run a Python script without exec, in a child of the zygote, with the imports already done.

:func:`preload` is called in the zygote and does the work that is the same for all scripts. In its child, once all
restrictions are in force, :class:`Ready` is raised, which unwinds the setup code. :func:`run` then turns the process
into an interpreter as ``python SCRIPT`` would have it.

Differences from exec: string hashes have one seed and memory has one layout for all scripts of a zygote; ``sys.flags``
are the zygote's (isolated, no site); no ``.pth`` file is read; a script can read the remains of its own plan in
memory; and at its end the interpreter isn't finalized (:mod:`.script_end`). So this is for scripts that are partly
trusted.
"""

import builtins
import functools
import gc
import importlib.machinery as machinery
import io
import os
import signal
import site
import sys
import time
import types
from collections.abc import Mapping
from typing import Any

from agentos.sandbox import steps as s
from agentos.sandbox.inside import libc

from . import script_end

SDK = "/sdk"  # the SDK's directory in every sandbox
_PRELOADED = ("json", "socket", "agentos_sdk", "agentos_sdk.blocking", "agentos_sdk.opcodes")
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_IGNORED_BY_OTHERS = [
    number
    for number in signal.valid_signals()
    if signal.getsignal(number) == signal.SIG_IGN and number not in _IGNORED_BY_PYTHON
]


class Ready(BaseException):
    """The process is fully confined, and the kernel has sent go."""

    def __init__(self, step: s.RunScript, source: bytes) -> None:
        super().__init__(step.argv[0])
        self.step, self.source = step, source


def preload(package: str) -> None:
    """Import the modules that scripts need; ``package`` is the directory of the SDK package, for scripts in ``SDK``."""
    finder = _Finder(package)
    sys.meta_path.insert(0, finder)
    try:
        for name in _PRELOADED:
            __import__(name)
    finally:
        sys.meta_path.remove(finder)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "agentos_sdk":
            assert module.__spec__ is not None
            assert module.__file__ is not None
            module.__loader__ = module.__spec__.loader = machinery.SourceFileLoader(name, module.__file__)
    site.setquit()
    site.sethelper()
    for directory in sys.path_importer_cache.keys() - set(sys.path):
        del sys.path_importer_cache[directory]
    sys.dont_write_bytecode = True
    sys.stdin = _open_stream(0, "r", "surrogateescape")
    sys.stdout = _open_stream(1, "w", "surrogateescape")
    sys.stderr = _open_stream(2, "w", "backslashreplace")
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    os.environ.clear()  # filled by run()
    libc.find_argv()
    _own_modules()


@functools.cache
def _own_modules() -> tuple[str, ...]:
    """The names of AgentOS's own modules."""
    return tuple(name for name in sys.modules if name.partition(".")[0] == "agentos")


class _Finder:
    """Finds the modules of the SDK and sets their paths to those in a sandbox."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> machinery.ModuleSpec | None:
        top, _, below = name.partition(".")
        if top != "agentos_sdk":
            return None
        directory = f"/{below.replace('.', '/')}" if below else ""
        is_package = os.path.isdir(self._package + directory)
        file = f"{directory}/__init__.py" if is_package else f"{directory}.py"
        loader = _Loader(name, f"{SDK}/{top}{file}", self._package)
        spec = machinery.ModuleSpec(name, loader, origin=loader.path, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [f"{SDK}/{top}{directory}"]
        return spec


class _Loader(machinery.SourceFileLoader):
    """Reads a file of the SDK, or its bytecode, by its path in a sandbox; to compile all takes 12 ms."""

    def __init__(self, name: str, path: str, package: str) -> None:
        super().__init__(name, path)
        self._package = package

    def path_stats(self, path: str) -> Mapping[str, Any]:
        return super().path_stats(self._real_path(path))

    def get_data(self, path: str) -> bytes:
        return super().get_data(self._real_path(path))

    def set_data(self, path: str, data: object, *, _mode: int = 0) -> None:
        """Leave the bytecode as it is."""

    def _real_path(self, path: str) -> str:
        return self._package + path.removeprefix(f"{SDK}/agentos_sdk")


def read_script(step: s.RunScript) -> Ready:
    """Return the exception that starts the script; ``OSError`` if it can't be read."""
    fd = os.open(step.argv[0], os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        source = os.read(fd, size + 1)
        while len(source) < size and (more := os.read(fd, size - len(source))):
            source += more
        return Ready(step, source)
    finally:
        os.close(fd)


def run(step: s.RunScript, source: bytes) -> None:
    """Run this script as ``__main__`` and end the process; raises what the script raises, except a plain exit."""
    path = step.argv[0]
    _kept = [
        sys.modules.pop(name) for name in _own_modules()
    ]  # inside, agentos is the SDK's; kept, as freeing costs more
    _set_interpreter_state(step)
    shared = sys.modules.keys() - {"__main__"}
    _restore_signals()
    gc.freeze()
    gc.enable()
    try:
        _run_main(path, source)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    else:
        status = 0
    script_end.exit_process(status, shared)


def _run_main(path: str, source: bytes) -> None:
    """Run the script. Only ``sys.modules`` refers to its module on return, so that its end frees it."""
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=path, __builtins__=builtins, __loader__=machinery.SourceFileLoader("__main__", path), __cached__=None
    )
    sys.modules["__main__"] = module
    names = id(module.__dict__)

    def show_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        while trace is not None and id(trace.tb_frame.f_globals) != names:
            trace = trace.tb_next  # tracebacks begin in the script
        sys.__excepthook__(kind, error.with_traceback(trace), trace)

    sys.excepthook = show_exception
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - it is what this file is for


def _set_interpreter_state(step: s.RunScript) -> None:
    """Set environment, time zone, sys.argv, sys.path and the random seed."""
    for name, value in step.environment:
        os.environ[name] = value
    if "TZ" in os.environ:
        time.tzset()
    sys.argv[:] = step.argv
    sys.path[:] = [os.path.dirname(step.argv[0]), *step.import_first, *sys.path, *step.import_last]
    if "random" in sys.modules:
        sys.modules["random"].seed()


def _open_stream(fd: int, mode: str, errors: str) -> io.TextIOWrapper:
    stream = open(fd, mode, buffering=1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    assert isinstance(stream, io.TextIOWrapper)
    return stream


def _restore_signals() -> None:
    for number in _IGNORED_BY_OTHERS:
        signal.signal(number, signal.SIG_DFL)
    if signal.SIGINT in _IGNORED_BY_OTHERS:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    libc.set_signal_mask(blocked=False)
