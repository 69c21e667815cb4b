"""What SEND and BROADCAST make of a request."""

from typing import Any

import msgspec

from agentos.agents.registry import Registry
from agentos.kernel.caller import Caller, Kind
from agentos.kernel.table import Table
from agentos.services.audit.traffic import Traffic
from agentos.services.mail.mailboxes import Mailboxes
from agentos.syscalls.messages import Messages
from tests.support.rights import Grants, Notebook
from tests.support.runs.rows import each_row

NO_AUDIT: Any = None  # nothing is counted


@each_row(
    ("kind", "account", "family"),
    [
        ("operator", "operator", ""),
        ("agent", "ann", "ann"),
        ("agent", "ann/bea/cid", "ann"),
        ("guest", "guest web", "guest web"),
    ],
)
def test_a_kept_message_is_charged_to_the_family_of_its_sender(kind: Kind, account: str, family: str) -> None:
    mail = Mailboxes()
    mail.open(7, "tester")
    calls = Messages(mail, Registry(), Traffic(NO_AUDIT), lambda caller: account)

    message = calls.make_message(Caller(7, kind, "tester", Table(()), Grants(), Notebook()), msgspec.Raw(b"1"))

    assert (message.family, message.from_id, message.from_name, message.from_kind) == (family, 7, "tester", kind)
