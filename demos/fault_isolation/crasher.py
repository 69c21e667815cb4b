"""Works for a second, then reads memory that isn't there: a real segmentation fault."""

import ctypes
import time

print("working", flush=True)
time.sleep(1.0)
ctypes.string_at(0)
