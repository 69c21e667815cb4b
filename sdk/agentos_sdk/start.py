"""Runs an agent's script as its interpreter would, with the SDK on ``sys.path``.

Run by the kernel as ``python start.py PATH ARGS...``, from the directory of the SDK that is added to the path. Uses the
standard library only, and runs on any Python 3 that an agent may choose.
"""

# mypy: ignore-errors
import os
import sys
import types


def main():
    program = sys.argv[1:]
    sdk = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.path[0] == os.path.dirname(os.path.realpath(__file__)):  # not there with PYTHONSAFEPATH
        sys.path[0] = os.path.dirname(program[0])
    if sdk not in sys.path:
        sys.path.append(sdk)
    sys.stdout.reconfigure(line_buffering=True)  # stdout is a pipe; readers of the log need each line at once
    sys.argv[:] = program
    run(program[0])


def run(path):
    """Run the script as ``__main__``, with tracebacks that start in the script."""

    def show(kind, error, trace):
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.__excepthook__(kind, error.with_traceback(trace), trace)

    sys.excepthook = show
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = module
    exec(code, module.__dict__)  # noqa: S102 - it is what this file is for


if __name__ == "__main__":
    main()
