"""The page of event types says of each what the kernel publishes."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from agentos.services import events
from agentos.services.event_log.records import PLAIN, SPECIAL, describe
from agentos.services.events import Event

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "events.md"
ROW = re.compile(r"^\| `([A-Z_]+)`(?:, `custom.<name>`)? \| (\w+) \| (.+?) \| .+ \|$", re.MULTILINE)
CUSTOM = events.CustomEvent(7, "a", "CUSTOM", msgspec.Raw(b"{}"))


def example(kind: type[Event]) -> Event:
    """An event of this class."""
    if kind is events.CustomEvent:
        return CUSTOM
    values = {int: 1, float: 1.0, str: "x", bool: False}
    fields: dict[str, Any] = {each.name: values.get(each.type, ()) for each in msgspec.structs.fields(kind)}
    return kind(**fields)


def test_the_page_has_each_type_with_its_severity_and_its_data() -> None:
    described = dict[str, tuple[str, list[str] | None]]()
    for kind in (*PLAIN, *SPECIAL):
        draft = describe(example(kind))
        assert draft is not None
        described[draft.type] = (draft.severity, None if draft.type == "CUSTOM" else list(json.loads(draft.data)))

    on_page = {
        name: (severity, None if data == "any JSON" else re.findall(r"`(\w+)`", data))
        for name, severity, data in ROW.findall(PAGE.read_text())
    }

    assert on_page == described
