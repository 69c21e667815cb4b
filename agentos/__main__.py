"""``python -m agentos`` and the console script ``agentos``."""

import sys


def main() -> None:
    from agentos.userland.cli.main import cli

    try:
        cli(prog_name="agentos")
    except OSError as error:  # e.g. the disk that our output goes to is full
        sys.exit(f"agentos: {error}")


if __name__ == "__main__":
    main()
