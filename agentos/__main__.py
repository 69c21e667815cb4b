"""``python -m agentos`` and the console script ``agentos``."""

import io
import os
import signal
import sys


def main() -> None:
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # of files' names, which may have any bytes, what is no text
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from agentos.userland.cli.main import cli

        cli(prog_name="agentos")
    except KeyboardInterrupt:  # while modules are imported
        sys.exit(128 + signal.SIGINT)
    except OSError as error:  # of a file, which it names, or of our output, whose disk may be full
        drop_unwritable()
        sys.exit(f"agentos: {error if error.filename else f'the output: {error.strerror or error}'}")


def open_closed_streams() -> None:
    """Open standard streams that are closed (``>&-``, some daemons) on /dev/null.

    Python has None for them, and a file or socket that is opened later would get their number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
        setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115 - for as long as we run


def drop_unwritable() -> None:
    """Drop output that can't be written: at its end Python would try once more, and change our exit status to 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
