"""Entries of a recording as the original's clients know them: a JSON array, one object for each call."""

from collections.abc import Collection
from pathlib import Path

from agentos_sdk.opcodes import Op

from .format import Json, encode_line
from .reader import read_recording


class TooLong(ValueError):
    """The entries take more bytes than a reply may have."""


def list_entries(path: Path, left_out: Collection[str], since: int, limit: int | None, most: int) -> list[Json]:
    """The first ``limit`` entries with an ``id`` above ``since``, without the calls ``left_out``. Reads the file.

    Raises :class:`TooLong` if their JSON has more than ``most`` bytes, and ``BadRecording``.
    """
    recording, found, size = read_recording(path), list[Json](), 0
    for number, call in enumerate(recording.calls(), 1):
        if number <= since or call.call in left_out:
            continue
        if len(found) == limit:
            break
        name = call.life.rpartition("/")[0]
        agent = recording.manifest.agents.get(name)
        entry = {
            "id": number,
            "timestamp": call.at,
            "agent_id": agent.id if agent is not None else 0,
            "agent_name": name,
            "opcode": Op[call.call].value if call.call in Op.__members__ else int(call.call, 16),
            "opcode_name": call.call,
            "request": call.request,
            "response": call.reply,
            "duration_us": round(call.milliseconds * 1000),
            "success": call.reply is not None and call.reply.get("success", True) is not False,
        }
        size += len(encode_line(entry)) + 1
        if size > most:
            raise TooLong
        found.append(entry)
    return found
