"""A script like most agents': it imports the SDK, connects and makes a call. Then it waits to be looked at.

It runs in a jail of its own, so that all that comes before a script's first call has been done.
"""

import os
import signal
import socket

from agentos_sdk import AgentOSClient

_KERNEL = "/tmp/kernel"  # in the jail's own /tmp
_ANSWER = b"TNGA" + bytes(5) + (4).to_bytes(8, "little") + b"here"  # to NOOP

with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(_KERNEL)
    listener.listen(1)
    os.environ["AGENTOS_SOCKET"] = _KERNEL
    client = AgentOSClient(os.environ["AGENTOS_SOCKET"])
    client.connect()
    with listener.accept()[0] as peer:
        peer.sendall(_ANSWER)
        print(client.echo("here"), flush=True)
signal.pause()
