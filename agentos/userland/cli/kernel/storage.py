"""``agentos storage``: what the state directory holds by owner and kind, from its files; the kernel isn't asked."""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from agentos.userland.cli.agents.resources import format_bytes
from agentos.userland.cli.audit.audit import owner_name
from agentos.userland.cli.common import Failed, json_option, print_json, print_table, printable
from agentos.userland.cli.kernel.run import find_state_dir, state_dir_option

KEYS = ("owner", "kind")


@click.command()
@click.option("--by", type=click.Choice([*KEYS, "both"]), default="both", show_default=True,
              help="A row for each owner, each kind, or each kind of each owner.")  # fmt: skip
@state_dir_option()
@json_option
def storage(by: str, state_dir: Path | None, as_json: bool) -> None:
    """Show what the state directory holds, the largest first.

    Sizes are those on disk. An owner is an agent, the kernel or the operator. It is read from the directory, so no
    kernel has to run.
    """
    place, keys = (state_dir or find_state_dir()).absolute(), KEYS if by == "both" else (by,)
    rows = group_rows(measure(place), keys)
    total, free = sum(row["bytes"] for row in rows), shutil.disk_usage(place).free
    if as_json:
        print_json({"state_dir": str(place), "bytes": total, "free": free, "storage": rows})
        return
    cells = [[*(row[key] for key in keys), format_bytes(row["bytes"]), str(row["entries"])] for row in rows]
    print_table(cells, [*(key.upper() for key in keys), "SIZE", "ENTRIES"])
    click.echo(printable(f"{format_bytes(total)} in {place}, {format_bytes(free)} free on its file system"))


def measure(place: Path) -> list[dict[str, Any]]:
    """What the directory holds; an error ends the command with one line."""
    from agentos.services.storage.kinds import measure_storage

    try:
        found = measure_storage(place)
    except FileNotFoundError:
        raise Failed(f"there is no state in {place}: a kernel makes it; say where with --state-dir") from None
    except PermissionError:
        may = " and ".join(dict.fromkeys([owner_name(place), "root"]))
        raise Failed(f"{place}: only {may} may read it") from None
    except (OSError, sqlite3.Error) as error:
        raise Failed(f"{place}: {error}") from None
    return [{"owner": held.owner, "kind": held.kind, "bytes": held.size, "entries": held.entries} for held in found]


def group_rows(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each combination of the keys, the largest first."""
    sizes, entries = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for row in rows:
        sizes[tuple(row[key] for key in keys)] += row["bytes"]
        entries[tuple(row[key] for key in keys)] += row["entries"]
    return [
        {**dict(zip(keys, key, strict=True)), "bytes": size, "entries": entries[key]}
        for key, size in sizes.most_common()
    ]
