"""The private keys of a recorded life as they were at a call, for an agent that goes on live from there."""

from collections.abc import Sequence

from attrs import frozen
from msgspec.structs import replace

from agentos.recordings.format import encode_line
from agentos.recordings.reader import RecordedCall
from agentos.services.state.copies import KeptKey
from agentos.services.state.state import State
from agentos_sdk.errors import CallError

from .progress import ReplayFailed
from .switch import Switch

ONLY_SHOWN = "its private keys are those that its calls show: the recording has none of its begin"


@frozen
class ScratchKeys:
    """Private keys of the agent ``name``, which has no others while it lives a recorded life again."""

    state: State
    keys: Sequence[KeptKey]

    async def begin(self, name: str) -> None:
        """Give them to it, before it begins. Raises ``ReplayFailed``."""
        await self._replace(name, self.keys)

    async def end(self, name: str) -> None:
        """It has ended: it has none. Raises ``ReplayFailed``."""
        await self._replace(name, [])

    async def _replace(self, name: str, keys: Sequence[KeptKey]) -> None:
        try:
            await self.state.replace(name, keys)
        except CallError as error:
            raise ReplayFailed(f"{name} can't have the keys of the recorded life: {error}") from None


def build_keys(
    start: Sequence[KeptKey], calls: Sequence[RecordedCall], switch: Switch, now: float
) -> Sequence[KeptKey]:
    """The keys that a life had at the first call that isn't answered from its recording.

    ``start`` are those of its begin. A key that it reads and that isn't known has the value that was read. Times to
    live go on from there; ``now`` is in seconds since the epoch.
    """
    before = sorted((call for call in calls if switch.is_before(call)), key=lambda call: call.end)
    first = min((call.at for call in calls), default=now)
    until = max((call.at + call.milliseconds / 1000 for call in before), default=first)
    keys, known = {one.key: one for one in start}, {one.key for one in start}
    for call in before:
        request, reply, key = call.request, call.reply or {}, str(call.request.get("key"))
        if reply.get("success") is not True or request.get("agent") is not None:
            continue
        if call.call == "STORE" and request.get("scope") == "agent":
            keys[key] = _keep(key, request.get("value"), request.get("ttl"), call)
        elif call.call == "DELETE" and reply.get("deleted") and reply.get("scope") == "agent":
            keys.pop(key, None)
        elif call.call == "FETCH" and reply.get("scope") == "agent" and key not in known:
            keys[key] = _keep(key, reply.get("value"), reply.get("expires_in"), call)
        else:
            continue
        known.add(key)
    alive = [one for one in keys.values() if one.expires is None or one.expires > until]
    return [one if one.expires is None else replace(one, expires=one.expires - until + now) for one in alive]


def _keep(key: str, value: object, ttl: object, call: RecordedCall) -> KeptKey:
    expires = call.at + ttl if isinstance(ttl, int | float) else None
    return KeptKey(key, encode_line(value), expires)
