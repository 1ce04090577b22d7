"""A program to supervise: it prints when it started; on SIGTERM it waits for `delay` and prints when it stopped."""

import os
import signal
import sys
import time


def main(name: str, delay: float) -> None:
    def stop(*_: object) -> None:
        time.sleep(delay)
        print(f"stopped {name} {time.time()}", flush=True)
        sys.exit()

    signal.signal(signal.SIGTERM, stop)
    print(f"started|{name}|{os.environ['SPECULOOS_HOME']}", flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
