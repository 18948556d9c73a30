"""Run a standalone Spark cluster from pyspark on loopback: a master and two workers.

Each worker has its own directory, home and credentials. Its Python has the libraries of this one without gc-assets, and cannot read the
files of the driver. Therefore the tests also hold for machines that share no disk.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from gc_assets.resources.class_archive import jvm_options
from gc_assets.resources.java import ensure_java_home
from tests.ports import free_port
from tests.s3.daemons import Daemons, daemons
from tests.s3.servers import environment

CHECKOUT = Path(__file__).parents[1]
WORKERS = 2
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
# Settings of an application: a driver on loopback, a small executor on each worker, and no wait for data locality.
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.locality.wait": "0",
}
# Raises if Python code of an executor reads or writes a file of the driver.
_GUARD_SOURCE = """
import os
import sys

HIDDEN = {hidden!r}
EVENTS = {{"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.chdir", "sqlite3.connect"}}


def refuse(event, arguments):
    if event in EVENTS and arguments and isinstance(arguments[0], (str, bytes)):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path.startswith(HIDDEN):
            raise PermissionError(f"{{path}} is on the driver's machine")


sys.addaudithook(refuse)
"""


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `python` is the program of the Python environment of the workers."""

    master: str
    folder: Path
    python: Path
    _workers: tuple[Daemons, ...]

    @property
    def work(self) -> list[Path]:
        """The work directory of each worker."""
        return [self.folder / f"worker-{number}" / "work" for number in range(WORKERS)]

    def executors(self) -> list[int]:
        """Return the process ids of the executors of all applications."""
        found = list[int]()
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess):
                if EXECUTOR in process.cmdline() and Path(process.cwd()).is_relative_to(self.folder):
                    found.append(process.pid)
        return found

    def executor_at(self, port: int) -> int | None:
        """Return the executor with a Python worker connected from this port, or None."""
        for executor in self.executors():
            for process in psutil.Process(executor).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if any(connection.laddr.port == port for connection in process.net_connections("tcp")):
                        return executor
        return None

    def kill_executor(self, pid: int) -> None:
        """Kill an executor. The worker starts another one."""
        os.kill(pid, signal.SIGKILL)

    def kill_worker(self, number: int) -> None:
        """Kill a worker with all its processes. None is restarted."""
        self._workers[number].stop()

    def logs(self) -> str:
        """Return the end of the standard error of all executors, for a failed test."""
        written = sorted(self.folder.glob("worker-*/work/*/*/stderr"))
        return "\n".join(f"{path}: {path.read_text(errors='replace')[-2000:]}" for path in written)


@contextmanager
def run_cluster(folder: Path, *hidden: Path) -> Iterator[Cluster]:
    """Run a cluster in a directory. Its executors cannot access the code of this checkout or the `hidden` paths."""
    home = Path(pyspark.__file__).parent
    python = create_environment(folder / "python", [*(CHECKOUT / name for name in ("gc_assets", "tests")), *hidden])
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    spark_class = str(home / "bin" / "spark-class")
    own = {**spark_environment(home), "PATH": f"{python.parent}:{os.environ['PATH']}", "SPARK_DAEMON_MEMORY": "256m"}
    with ExitStack() as stack:
        leader = stack.enter_context(daemons(folder / "master", own))
        address = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
        leader.start(spark_class, "org.apache.spark.deploy.master.Master", *address)
        workers = []
        for number in range(WORKERS):
            directory = folder / f"worker-{number}"
            for name in ("home", "tmp", "local", "work"):
                (directory / name).mkdir(parents=True)
            local = {"HOME": str(directory / "home"), "TMPDIR": str(directory / "tmp"), "SPARK_LOCAL_DIRS": str(directory / "local")}
            workers.append(stack.enter_context(daemons(directory / "log", {**own, **environment(directory), **local})))
            limits = ("--cores", "1", "--memory", "700m", "--work-dir", str(directory / "work"))
            listen = ("--host", "127.0.0.1", "--port", str(free_port()), "--webui-port", str(free_port()))
            workers[-1].start(spark_class, "org.apache.spark.deploy.worker.Worker", *listen, *limits, master)
        leader.wait(lambda: _count_workers(page) == WORKERS)
        yield Cluster(master, folder, python, tuple(workers))


def spark_environment(home: Path) -> dict[str, str]:
    """Return the environment of a Spark in `home` with quick JVMs and without this checkout."""
    java = ensure_java_home()
    quick = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {jvm_options(java)}"
    return {"SPARK_HOME": str(home), "JAVA_HOME": java, "JDK_JAVA_OPTIONS": quick, "PYTHONPATH": "", "SPARK_LOCAL_IP": "127.0.0.1"}


def _count_workers(page: int) -> int:
    """Return the number of workers of the master."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return json.load(answer)["aliveworkers"]
    except (OSError, ValueError):  # a starting master returns another page
        return 0


def create_environment(directory: Path, hidden: list[Path]) -> Path:
    """Create a Python environment with the libraries of this one, without gc-assets. Return its program."""
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    for number, path in enumerate(item for item in sys.path if item.endswith("site-packages")):
        (site / f"libraries{number}.pth").write_text(f"{path}\n")
    (site / "guard.pth").write_text("import guard\n")  # the system can have its own sitecustomize
    (site / "guard.py").write_text(_GUARD_SOURCE.format(hidden=tuple(str(path) for path in hidden)))
    return directory / "bin" / "python3"
