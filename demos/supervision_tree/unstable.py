"""Works for a while, then meets the bug that it has: the last of its parts is 0."""

import sys
import time

from agentos import AgentOSClient

sys.tracebacklimit = 0  # one line for each crash is enough to watch

with AgentOSClient():  # the first connection tells the kernel that we are up
    for parts in (4, 2, 0):
        share = 100 / parts
        time.sleep(1)
