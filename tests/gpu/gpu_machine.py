"""What the scripts of tests/gpu share: the machine they run on, its libraries, programs with a time limit, and the
table and the JSON file that every script ends with. Standard library only."""

import glob
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Lines of a failing program that say why: a barrier that a kernel waited for in vain, a CUDA error, a check, a test's failure.
REASON = re.compile(r"mbarrier|cuda, |CUDA error|CHECK |kernel fault|Failure$|differs|differ at|terminate called|not found")


def python_library_folders():
    """Folders of the libraries in pip's nvidia wheels, of this Python and of others on the machine."""
    places = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    for pattern in ("/opt/*/lib/python3*/site-packages", "/opt/*/.venv/lib/python3*/site-packages",
                    "/usr/lib/python3*/*-packages", "/usr/local/lib/python3*/*-packages",
                    "/root/.local/lib/python3*/site-packages", "/home/*/.local/lib/python3*/site-packages"):
        places += glob.glob(pattern)
    return [folder for place in dict.fromkeys(places) for folder in sorted(glob.glob(place + "/nvidia/*/lib"))]


def library_folders():
    toolkits = ["/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-1[3-9]*"), reverse=True)]
    return [*(f"{toolkit}/{folder}" for toolkit in toolkits for folder in ("lib64", "extras/CUPTI/lib64")),
            "/usr/lib/x86_64-linux-gnu", *python_library_folders()]


def find_library(name):
    """The first folder with the library, or None."""
    return next((folder for folder in library_folders() if os.path.exists(os.path.join(folder, name))), None)


class Machine:
    def __init__(self, pack, on_host):
        self.pack = pathlib.Path(pack).resolve()
        self.on_host = on_host
        self.notes = []  # what is missing here
        self.name, self.memory_gib = "CUDA on the host", 0
        if not on_host:
            self.find_gpu()
        self.environment = dict(os.environ)
        self.find_libraries()

    def find_gpu(self):
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
        try:
            line = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()[0]
        except (OSError, IndexError, subprocess.SubprocessError):
            sys.exit("tests/gpu/run: no GPU on this machine (nvidia-smi): nothing was run")
        name, memory, driver = [part.strip() for part in line.split(",")]
        self.name, self.memory_gib = f"{name}, driver {driver}", int(memory) / 1024

    def find_libraries(self):
        folders = [str(self.pack / "lib")]
        # NCCL's library is loaded with the programs: without one, the pack's own refuses every call.
        for name, what in (("libnccl.so.2", "several ranks"), ("libcublasLt.so.13", "library times"),
                           ("libcupti.so.13", "the trace of a step")):
            if (self.pack / "lib" / name).exists():
                continue
            folder = find_library(name)
            if folder is not None:
                folders.append(folder)
            elif not self.on_host:
                self.notes.append(f"{name}: not on this machine; skipped: {what}")
        folders.append(str(self.pack / "lib" / "absent"))
        known = self.environment.get("LD_LIBRARY_PATH")
        self.environment["LD_LIBRARY_PATH"] = ":".join(folders + ([known] if known else []))

    def program(self, name):
        path = self.pack / "bin" / name
        if not path.exists():
            sys.exit(f"tests/gpu/run: {path}: not there; tests/gpu/pack makes it")
        return str(path)

    def unresolved(self, name):
        """Libraries that the program needs and the loader does not find."""
        listing = subprocess.run(["ldd", self.program(name)], capture_output=True, text=True, env=self.environment)
        return [line.split()[0] for line in listing.stdout.splitlines() if "not found" in line]


class Result:
    """What a program did: its output, and in a word how it ended."""

    def __init__(self, ended, seconds, output):
        self.ended, self.seconds, self.output = ended, seconds, output

    @property
    def passed(self):
        return self.ended == "passed"

    def reason(self):
        """One line of the output that says why it failed."""
        lines = [line.strip() for line in self.output.splitlines()]
        named = [line for line in lines if REASON.search(line)]
        barrier = [line for line in named if "mbarrier" in line]
        return (barrier or named or lines or [""])[-1 if barrier or not named else 0][:300]


def name_of_status(code):
    return "passed" if code == 0 else f"status {code}" if code > 0 else signal.Signals(-code).name


def run_program(machine, command, limit):
    """Runs a program in a process group of its own; past `limit` seconds it is ended, and killed 2 s later. The pack's
    programs get the pack's libraries, others (Python) the machine's."""
    packed = any(word.startswith(str(machine.pack / "bin")) for word in command)
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                               env=machine.environment if packed else None, cwd=machine.pack, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit)
        ended = name_of_status(process.returncode)
    except subprocess.TimeoutExpired:
        ended = f"past {limit:.0f} s"
        output = ""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, sign)
                output, _ = process.communicate(timeout=2)
                break
            except (subprocess.TimeoutExpired, ProcessLookupError):
                continue
    return Result(ended, time.monotonic() - start, output or "")


class Clocks:
    """The GPU's clocks and power, twice a second: a figure taken while the card slowed down is told from a slow kernel."""

    QUERY = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")

    def __init__(self, machine):
        self.samples, self.process = [], None
        if machine.on_host:
            return
        command = ["nvidia-smi", f"--query-gpu={','.join(self.QUERY)}", "--format=csv,noheader,nounits", "-lms", "500"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            try:
                self.samples.append([float(part) for part in line.split(",")])
            except ValueError:  # "[N/A]"
                pass

    def between(self, first):
        """Median and least SM clock of the samples since `first`, in MHz; empty without samples."""
        clocks = sorted(sample[0] for sample in self.samples[first:])
        return {"sm_mhz": clocks[len(clocks) // 2], "least_sm_mhz": clocks[0]} if clocks else {}

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def text(self):
        if not self.samples:
            return ""
        columns = list(zip(*self.samples))
        return ", ".join(f"{name} {min(column):.0f} to {max(column):.0f}" for name, column in zip(self.QUERY, columns))


FINE = ("passed", "measured", "skipped")


class Report:
    """The rows of a script: printed as they come, as a table at the end, and as STAGE.json and STAGE.txt in `out`. A row
    has a name and a result; a figure has `measured` and `predicted`, in `unit`."""

    def __init__(self, stage, machine, out, minutes):
        self.stage, self.machine, self.out = stage, machine, pathlib.Path(out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + 60 * minutes
        self.rows, self.log = [], []
        self.clocks = Clocks(machine)
        for note in machine.notes:
            self.add(note.split(":")[0], "skipped", reason=note)

    def left(self):
        return self.deadline - time.monotonic()

    def add(self, name, result, **figures):
        row = {"name": name, "result": result, **figures}
        self.rows.append(row)
        print(self.line(row), flush=True)
        self.save()

    def add_program(self, name, command, limit):
        """Runs it as one row, if there is time; returns the result, or None."""
        if self.left() < 3:
            self.add(name, "not run", reason="no time left")
            return None
        limit = min(limit, self.left())
        first = len(self.clocks.samples)
        result = run_program(self.machine, command, limit)
        self.add_result(name, result, command, self.clocks.between(first))
        return result

    def add_result(self, name, result, command, clocks=None):
        figures = {"seconds": round(result.seconds, 2), **(clocks or {})}
        if result.ended not in FINE:
            figures["reason"] = result.reason()
            figures["repeat"] = " ".join(command)
            self.log.append(f"==== {name}: {result.ended}\n{result.output[-6000:]}")
        self.add(name, result.ended, **figures)

    def failed(self):
        return [row for row in self.rows if row["result"] not in FINE]

    def save(self):
        machine = {"gpu": self.machine.name, "memory_gib": round(self.machine.memory_gib, 1)}
        whole = {"stage": self.stage, "machine": machine, "rows": self.rows}
        (self.out / f"{self.stage}.json").write_text(json.dumps(whole, indent=1) + "\n")
        text = [self.line(row) for row in self.rows]
        (self.out / f"{self.stage}.txt").write_text("\n".join([self.machine.name, self.head(), *text, "", *self.log]) + "\n")

    @staticmethod
    def head():
        return f"{'':<46} {'result':<12} {'s':>6} {'measured':>10} {'predicted':>10} {'ratio':>6}  unit"

    @staticmethod
    def line(row):
        def number(value):
            return f"{value:,.2f}" if isinstance(value, (int, float)) else "-"

        measured, predicted = row.get("measured"), row.get("predicted")
        ratio = f"{measured / predicted:.2f}" if measured and predicted else "-"
        seconds = f"{row['seconds']:.1f}" if "seconds" in row else "-"
        text = (f"{row['name'][:46]:<46} {row['result']:<12} {seconds:>6} {number(measured):>10} {number(predicted):>10} "
                f"{ratio:>6}  {row.get('unit', '')}")
        return text + (f"\n    {row['reason']}" if row.get("reason") else "")

    def end(self):
        """The table again, failures last; the exit status."""
        self.clocks.end()
        if clocks := self.clocks.text():
            self.add("clocks", "passed", reason=clocks)
        print(f"\n{self.stage}, {self.machine.name}\n{self.head()}")
        for row in sorted(self.rows, key=lambda row: row["result"] not in FINE):
            print(self.line(row))
        failed = self.failed()
        print(f"{self.stage}: {len(self.rows) - len(failed)} of {len(self.rows)} rows passed, measured or skipped; "
              f"{self.out / self.stage}.txt, .json")
        self.save()
        return 1 if failed or not self.rows else 0


def json_lines(path):
    """The objects of a file that ops_bench or step_bench wrote, also if it was stopped."""
    objects = []
    if pathlib.Path(path).exists():
        for line in pathlib.Path(path).read_text().splitlines():
            try:
                objects.append(json.loads(line))
            except ValueError:
                pass
    return objects
