"""Puts a coin into the shared till 100 times; a version that has changed meanwhile means: look again."""

from agentos import AgentOSClient

COINS = 100

with AgentOSClient() as kernel:
    again = 0
    for _ in range(COINS):
        while True:
            found = kernel.fetch("till", "global")
            stored = kernel.store("till", (found["value"] or 0) + 1, if_version=found["version"])
            if stored["success"]:
                break
            if stored["code"] != "conflict":
                raise SystemExit(stored["error"])
            again += 1
    print(f"put in {COINS} coins, looked again {again} times", flush=True)
