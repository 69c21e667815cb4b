"""Becomes an agent's program: ties its life to the kernel's, then runs the script or the command.

Run by the kernel as ``python start.py STATUS_FD KERNEL_PID SDK_DIR script PATH ARGS...`` or ``... command ARGV...``.
STATUS_FD is a pipe: closed without a word = the program runs from here on; text = why it could not be started.
Standard library only, and plain enough for any Python 3 that an agent may choose.
"""

# mypy: ignore-errors
# ruff: noqa: UP031
import ctypes
import os
import resource
import signal
import sys
import types

PR_SET_PDEATHSIG = 1
OPEN_FILES = 1024  # the kernel raised its own limit; programs that use select() can't live with that


def main():
    status, kernel, sdk, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    program = sys.argv[5:]
    os.set_inheritable(status, False)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != kernel:  # the kernel died before the line above took hold
        os._exit(1)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
    try:
        if kind == "command":
            os.execvp(program[0], program)
        code = load(program[0])
    except (OSError, SyntaxError, ValueError) as error:
        os.write(status, describe(program[0], error).encode("utf-8", "replace"))
        os._exit(127)
    os.close(status)
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):  # not there with PYTHONSAFEPATH
        sys.path[0] = os.path.dirname(program[0])
    sys.path.append(sdk)
    sys.stdout.reconfigure(line_buffering=True)  # it is a pipe, and whoever watches wants to see each line as it comes
    sys.argv[:] = program
    run(code, program[0])


def load(path):
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec")


def describe(path, error):
    if isinstance(error, SyntaxError):
        return "%s:%s: %s" % (path, error.lineno, error.msg)
    return "%s: %s" % (path, getattr(error, "strerror", None) or error)


def run(code, path):
    """Run ``code`` as ``__main__``, with tracebacks that begin in it."""
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = module

    def show(kind, error, trace):
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.__excepthook__(kind, error.with_traceback(trace), trace)

    sys.excepthook = show
    exec(code, module.__dict__)  # noqa: S102 - it is what this file is for


if __name__ == "__main__":
    main()
