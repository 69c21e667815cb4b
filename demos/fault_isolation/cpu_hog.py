"""An infinite loop; once a second it prints which share of a CPU it has got since it began."""

import time

born, used_before, next_word = time.monotonic(), time.process_time(), 1.0
while True:
    alive = time.monotonic() - born
    if alive >= next_word:
        print(f"after {alive:.1f} s: got {(time.process_time() - used_before) / alive:.1%} of a CPU", flush=True)
        next_word = alive + 1.0
