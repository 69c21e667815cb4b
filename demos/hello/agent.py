"""An agent in ten lines: a program that talks to its kernel. The kernel's socket is in its environment already."""

import os

from agentos import AgentOSClient

with AgentOSClient() as kernel:
    reply = kernel.hello()
    print(f"I am {reply['name']}, agent {reply['agent_id']}, in my jail process {os.getpid()}", flush=True)
    print(f"the kernel echoes: {kernel.echo('hello from the other side')}", flush=True)
