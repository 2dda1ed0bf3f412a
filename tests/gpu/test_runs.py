"""Runs tests of gpu_tests, many in a process, since a process takes seconds to start on a GPU. One that fails, hangs or
kills its process is a row like any other; the rest then goes on in a new process, since a failed kernel spoils its own."""

import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
import time

from gpu_machine import Result, name_of_status, run_program

STARTED = re.compile(r"\[ RUN      \] (\S+)")
ENDED = re.compile(r"\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+)")
WORDS = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
LEAST_SECONDS = 3  # a process is not started with less time left


def list_tests(machine):
    """Full names, parametrised tests as the binary lists them."""
    listing = run_program(machine, [machine.program("gpu_tests"), "--gtest_list_tests"], 60)
    names, suite = [], ""
    for line in listing.output.splitlines():
        if line and not line.startswith(" ") and line.split("#")[0].rstrip().endswith("."):
            suite = line.split("#")[0].strip()
        elif line.startswith("  ") and suite:
            names.append(suite + line.split("#")[0].strip())
    return names


def test_command(machine, names):
    return [machine.program("gpu_tests"), "--gtest_filter=" + ":".join(names)]


def kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Run:
    """One process with the tests `names`. `add` gets each test's Result; until_end() gives the tests that did not run."""

    def __init__(self, report, names, limit, add):
        self.report, self.left, self.limit, self.add = report, list(names), limit, add
        # Of its own: processes that run tests of one source write files of the same names.
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(test_command(report.machine, names), stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.STDOUT, errors="replace", cwd=report.machine.pack,
                                        env={**report.machine.environment, "TEST_TMPDIR": self.folder.name},
                                        start_new_session=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        self.test = self.last = None  # the one that runs, the one that ended last
        self.output = []
        self.since = time.monotonic()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def end_test(self, ended):
        # Of a process that ends before a test starts, the first is to blame: it would not start the next time either.
        name = self.last = self.test or self.left[0]
        self.left.remove(name)
        self.add(name, Result(ended, time.monotonic() - self.since, "".join(self.output)))
        self.test, self.output = None, []
        self.since = time.monotonic()

    def take(self, line):
        """False if the process is of no more use."""
        if started := STARTED.match(line):
            self.test, self.output, self.since = started[1], [], time.monotonic()
        elif (ended := ENDED.match(line)) and ended[2] == self.test:
            self.end_test(WORDS[ended[1]])
            return ended[1] != "FAILED"
        else:
            self.output.append(line)
        return True

    def end_process(self):
        status = name_of_status(self.process.wait())
        if self.left:
            self.end_test("ended early" if status == "passed" else status)
        elif status != "passed":
            self.add(f"{self.last}, when its process ends", Result(status, 0, "".join(self.output)))

    def until_end(self):
        """The tests that did not run."""
        while True:
            limit = max(1, min(self.limit, self.report.left()))
            try:
                line = self.lines.get(timeout=max(0.1, self.since + limit - time.monotonic()))
            except queue.Empty:
                kill(self.process)
                if self.left:
                    self.end_test(f"past {limit:.0f} s")
                break
            if line is None:
                self.end_process()
                break
            if not self.take(line):
                break
        kill(self.process)
        self.folder.cleanup()
        return self.left


def run_share(report, names, limit, add):
    while names and report.left() >= LEAST_SECONDS:
        names = Run(report, names, limit, add).until_end()
    for name in names:
        add(name, Result("not run", 0, "no time left\n"))


def add_tests(report, names, limit, jobs=1):
    """A row per test, as they end, `jobs` processes at once; the results by name. `limit`: seconds of one test."""
    results, lock = {}, threading.Lock()

    def add(name, result):
        with lock:
            results[name] = result
            report.add_result(name, result, test_command(report.machine, [name]))

    shares = [names[i::jobs] for i in range(jobs)]
    threads = [threading.Thread(target=run_share, args=(report, share, limit, add)) for share in shares if share]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
