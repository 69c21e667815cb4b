"""Takes jobs from its mailbox, one at a time: how many primes are there below a number?"""

import os

from agentos import AgentOSClient

JAIL = os.readlink("/proc/self/ns/pid")  # every jail is process 2 to itself; this tells them apart


def primes_below(limit: int) -> int:
    """Counted with the sieve of Eratosthenes."""
    sieve = bytearray([0, 0]) + bytearray([1]) * (limit - 2)
    for number in range(2, int(limit**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, limit, number)))
    return sum(sieve)


with AgentOSClient() as kernel:
    while True:
        for message in kernel.recv_messages(max_messages=1, timeout=60)["messages"]:
            below = message["message"]["below"]
            result = {"below": below, "primes": primes_below(below), "jail": JAIL}
            kernel.send_message(result, to=message["from_id"])
