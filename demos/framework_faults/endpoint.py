"""An agent without a jail: it prints where the kernel's endpoint for programs of this host is, and its key."""

import os
import time

print(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], flush=True)
while True:
    time.sleep(1000)
