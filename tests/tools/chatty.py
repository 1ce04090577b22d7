"""A program that prints without end, for tests of logs."""

import sys
import time

number = 0
while True:
    number += 1
    print(f"line {number} " + "x" * 4000, flush=True)
    print(f"error {number}", file=sys.stderr, flush=True)
    time.sleep(0.005)
