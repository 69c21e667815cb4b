"""Connects the recorder of calls with what it records: callers, lives of agents, and the secrets of the kernel."""

from agentos.recordings.recorder.commands import CommandFiles
from agentos.recordings.recorder.recorder import Recorder
from agentos.syscalls.model.think import build_reply

from .access import Access


def connect_recorder(recorder: Recorder, access: Access) -> None:
    """Call it when the observer of all calls is known, before a caller gets its table."""
    callers = access.callers

    def list_secrets() -> list[tuple[str, str]]:
        return [*callers.secrets.list_named(), *(("model key", key) for key in callers.line.contents.keys)]

    recorder.registry, recorder.below = access.callers.registry, callers.tables.observer
    recorder.maker.build_reply, recorder.maker.list_secrets = build_reply, list_secrets
    recorder.choose_tables = callers.choose_tables
    callers.tables.recorder, callers.tables.is_recorded = recorder, recorder.wants
    callers.tables.watch = CommandFiles(recorder).watch
    access.events.subscribe(recorder.take_event)
