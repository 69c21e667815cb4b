"""Can never work: the file that it needs does not exist, and no restart will bring it."""

import sys
import time

sys.tracebacklimit = 0  # one line for each crash is enough to watch

time.sleep(1)
with open("orders.csv") as orders:
    print(orders.read())
