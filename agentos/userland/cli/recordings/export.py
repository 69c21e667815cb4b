"""``agentos recordings export``: a recording as one file for others, without what is listed or left out."""

from collections.abc import Sequence
from pathlib import Path

import click

from agentos.recordings.changes import NotKept
from agentos.recordings.exports.archive import CantExport, write_export
from agentos.recordings.exports.redaction import BadList, Redaction, read_list
from agentos.recordings.reader import Recording
from agentos.userland.cli.agents.resources import format_bytes
from agentos.userland.cli.common import Failed, plural, print_json, printable
from agentos.userland.cli.files.archives import check_target
from agentos.userland.whole_files import replacing

from .recordings import readable

MAX_LIST = 1 << 20  # bytes


def export_recording(
    recording: Recording, file: Path, redact: Path | None, without: Sequence[str], as_json: bool
) -> None:
    """Write it whole, or leave the file as it was; raises :class:`Failed`."""
    check_target(file)
    redaction = _read_list(redact) if redact is not None else None
    path = file.absolute()
    try:
        with readable(), replacing(path) as out:
            manifest = write_export(recording, out, path.parent, without, redaction)
            size = out.tell()
    except BadList as error:
        raise Failed(f"{redact}: {error}") from None
    except (CantExport, NotKept) as error:
        raise Failed(f"{recording.manifest.name}: {error}") from None
    counts = _count(redaction) if redaction is not None else {}
    if as_json:
        redacted = [{"line": line, "texts": count} for line, count in counts.items()]
        print_json({"name": manifest.name, "size": size, "lacks": manifest.lacks, "redacted": redacted})
        return
    lacks = f", without {', '.join(manifest.lacks)}" if manifest.lacks else ""
    click.echo(printable(f"{manifest.name} is in {file}: {format_bytes(size)}{lacks}"))
    for line, count in counts.items():
        click.echo(printable(f"{redact}, line {line}: {plural(count, 'text') if count else 'not found'}"))


def _read_list(path: Path) -> Redaction:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LIST + 1)
        if len(data) > MAX_LIST:
            raise Failed(f"{path}: longer than {MAX_LIST >> 20} MiB")
        return read_list(data.decode())
    except BadList as error:
        raise Failed(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise Failed(f"{path}: expected a text in UTF-8") from None
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}") from None


def _count(redaction: Redaction) -> dict[int, int]:
    """How many different texts were replaced, by the line that lists them."""
    counts = dict.fromkeys(sorted({*redaction.texts.values(), *(line for line, _, _ in redaction.patterns)}), 0)
    for text in redaction.found:
        counts[redaction.texts[text]] += 1
    return counts
