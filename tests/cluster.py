"""A standalone Spark cluster of pyspark's own distribution on loopback: a master and two workers, up in seconds.

Each worker has a directory, a home and credentials of its own. Their Python has the libraries of this one and not gc-assets, and refuses
to touch what only the driver's machine has. So what works here works on machines that share no disk.
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
# Settings of an application here: one small executor on each worker, a driver on loopback, and tasks that wait for no place of their own.
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.locality.wait": "0",
}
# Raises where Python code of an executor touches what only the driver's machine has.
_GUARD = """
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
    """`python` is the environment of the workers; `python3` on their path is its Python."""

    master: str
    folder: Path
    python: Path
    _workers: tuple[Daemons, ...]

    @property
    def work(self) -> list[Path]:
        """The work directories, one for each worker."""
        return [self.folder / f"worker-{number}" / "work" for number in range(WORKERS)]

    def executors(self) -> list[int]:
        """The processes of the executors of all applications."""
        found = list[int]()
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess):
                if EXECUTOR in process.cmdline() and Path(process.cwd()).is_relative_to(self.folder):
                    found.append(process.pid)
        return found

    def executor_at(self, port: int) -> int | None:
        """The executor one of whose Python workers has a connection from this port; null where it is somebody else's."""
        for executor in self.executors():
            for process in psutil.Process(executor).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if any(connection.laddr.port == port for connection in process.net_connections("tcp")):
                        return executor
        return None

    def kill_executor(self, pid: int) -> None:
        """SIGKILL. The worker starts another one."""
        os.kill(pid, signal.SIGKILL)

    def kill_worker(self, number: int) -> None:
        """The machine dies: the worker and what runs there at once, and nothing is started anew."""
        self._workers[number].stop()

    def logs(self) -> str:
        """The last lines of what executors wrote to standard error, for a test that failed."""
        written = sorted(self.folder.glob("worker-*/work/*/*/stderr"))
        return "\n".join(f"{path}: {path.read_text(errors='replace')[-2000:]}" for path in written)


@contextmanager
def run_cluster(folder: Path, *hidden: Path) -> Iterator[Cluster]:
    """A cluster below a folder. Executors may not touch this checkout's code, nor what is `hidden`."""
    home = Path(pyspark.__file__).parent
    python = create_environment(folder / "python", [*(CHECKOUT / name for name in ("gc_assets", "tests")), *hidden])
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    spark_class = str(home / "bin" / "spark-class")
    own = {**spark_environment(home), "PATH": f"{python.parent}:{os.environ['PATH']}", "SPARK_DAEMON_MEMORY": "256m"}
    with ExitStack() as started:
        leader = started.enter_context(daemons(folder / "master", own))
        address = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
        leader.start(spark_class, "org.apache.spark.deploy.master.Master", *address)
        workers = []
        for number in range(WORKERS):
            place = folder / f"worker-{number}"
            for name in ("home", "tmp", "local", "work"):
                (place / name).mkdir(parents=True)
            local = {"HOME": str(place / "home"), "TMPDIR": str(place / "tmp"), "SPARK_LOCAL_DIRS": str(place / "local")}
            workers.append(started.enter_context(daemons(place / "log", {**own, **environment(place), **local})))
            limits = ("--cores", "1", "--memory", "700m", "--work-dir", str(place / "work"))
            here = ("--host", "127.0.0.1", "--port", str(free_port()), "--webui-port", str(free_port()))
            workers[-1].start(spark_class, "org.apache.spark.deploy.worker.Worker", *here, *limits, master)
        leader.wait(lambda: _count_workers(page) == WORKERS)
        yield Cluster(master, folder, python, tuple(workers))


def spark_environment(home: Path) -> dict[str, str]:
    """The environment of a Spark at `home` whose JVMs start quickly, and which knows nothing of this checkout."""
    java = ensure_java_home()
    quick = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {jvm_options(java)}"
    return {"SPARK_HOME": str(home), "JAVA_HOME": java, "JDK_JAVA_OPTIONS": quick, "PYTHONPATH": "", "SPARK_LOCAL_IP": "127.0.0.1"}


def _count_workers(page: int) -> int:
    """How many workers the master knows."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return json.load(answer)["aliveworkers"]
    except (OSError, ValueError):  # before its pages stand, a master answers with another one
        return 0


def create_environment(place: Path, hidden: list[Path]) -> Path:
    """A Python with the libraries of this one, but without what is installed there in editable mode: gc-assets. Returns its program."""
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    for number, path in enumerate(item for item in sys.path if item.endswith("site-packages")):
        (site / f"libraries{number}.pth").write_text(f"{path}\n")
    (site / "guard.pth").write_text("import guard\n")  # a sitecustomize of the machine's own would go before ours
    (site / "guard.py").write_text(_GUARD.format(hidden=tuple(str(path) for path in hidden)))
    return place / "bin" / "python3"
