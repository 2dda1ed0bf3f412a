"""A daemon that a bench starts and ends."""

import re
import signal
import subprocess
import sys
import time

READY = re.compile(r"serving +grpc (\S+) .*openai http://([^/]+)")
START_LIMIT_S = 60


class Daemon:
    """foredraft serve, ready, until the end of a with block. sets: KEY=VALUE; log: a file that it may write."""

    def __init__(self, bin_dir, config, sets, log):
        flags = ["server.grpc_address=127.0.0.1:0", "server.metrics_address=127.0.0.1:0", "server.http_address=127.0.0.1:0", *sets]
        command = [bin_dir / "foredraft", "serve", "--config", config]
        self.process = subprocess.Popen([*command, *(part for flag in flags for part in ("--set", flag))],
                                        stdout=subprocess.DEVNULL, stderr=open(log, "w"))
        start = time.monotonic()
        while not (ready := READY.search(log.read_text())):
            if self.process.poll() is not None or time.monotonic() - start > START_LIMIT_S:
                self.process.kill()
                sys.exit(f"the daemon did not start:\n{log.read_text()}")
            time.sleep(0.02)
        self.address, self.http_address = ready[1], ready[2]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
