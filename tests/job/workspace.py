"""A fake of a Databricks workspace on loopback: no Databricks, and none of its code.

It answers the four calls of the Jobs API that a run needs (`runs/submit`, `runs/get`, `runs/get-output`, `runs/cancel`), one token, and
everything else with 404. A run is executed by spark-submit on this machine, or keeps the state that a test sets.

Sources of the responses: the calls, fields and states are those of the SDK's dataclasses, which parse each response.
The present fields and the messages of states are those of recorded responses:
- a run that failed and its output: Jordan-M-Young/brickproof (Jobs API of June 2025)
- a run of a Python file on a new cluster that ended well: amesar/databricks-tests, example/samples/003_run_terminated.json (2020)
- a run whose library could not be installed: dagster-io/dagster, pull request 21326
- a cancelled run ends some time after the call, and cancelling one that has ended does nothing: the API's reference
Responses without a known record are invented, and marked with a comment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyspark

from gc_assets.core.paths import bucket_and_key

TOKEN = "dapi-test-token"  # noqa: S105
SUCCESS = {"life_cycle_state": "TERMINATED", "result_state": "SUCCESS", "state_message": ""}
FAILED = {
    "life_cycle_state": "TERMINATED",
    "result_state": "FAILED",
    "state_message": "Workload failed, see run output for details",
    "user_cancelled_or_timedout": False,
}
NOT_INSTALLED = {
    "life_cycle_state": "INTERNAL_ERROR",
    "result_state": "FAILED",
    "state_message": "Task gc-assets failed with message: Library installation failed for library due to user error. Error messages:\n"
    "Python wheels must be stored in UC Volumes, dbfs, s3, adls, gs or as a workspace file/local file. This caused all downstream tasks to "
    "get skipped.",
}
PENDING = {"life_cycle_state": "PENDING", "state_message": "Waiting for cluster"}
RUNNING = {"life_cycle_state": "RUNNING", "state_message": "In run"}
# The message is invented.
CANCELED = {"life_cycle_state": "TERMINATED", "result_state": "CANCELED", "state_message": "Cancelled.", "user_cancelled_or_timedout": True}

# Databricks runs a file in a Python with an existing session. The effect of sys.exit there is unknown, so it is a failure here.
DRIVER = """
import runpy, sys
from pyspark.sql import SparkSession
SparkSession.builder.getOrCreate()
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
except SystemExit as error:
    sys.exit(f"SystemExit: {error.code}")
"""


@dataclass
class RecordedRun:
    """A run, and its request."""

    run_id: int
    request: Mapping[str, Any]
    state: Mapping[str, Any]
    error: str | None = None
    process: subprocess.Popen[bytes] | None = None
    is_cancelled: bool = False

    @property
    def environment(self) -> Mapping[str, str]:
        return self.request["tasks"][0]["new_cluster"].get("spark_env_vars", {})


@dataclass
class Workspace:
    """A workspace.

    Attributes:
        state: The state of a run from start to end. Runs without one are executed.
        broken: The number of responses to `runs/submit` that are still lost.
        failing: The number of responses about runs that are still server errors.
        denied: Whether the token may not read runs.
    """

    folder: Path
    s3: Any
    host: str = ""
    state: Mapping[str, Any] | None = None
    error: str | None = None
    broken: int = 0
    failing: int = 0
    denied: bool = False
    runs: dict[int, RecordedRun] = field(default_factory=dict)

    @property
    def last(self) -> RecordedRun:
        return self.runs[max(self.runs)]

    def page(self, run_id: int) -> str:
        return f"{self.host}/?o=2567941339669575#job/625234784902960/run/{run_id}"

    def answer(self, call: str, request: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        if call == "POST submit":
            return 200, {"run_id": self._submit(request).run_id}
        run_id = int(request["run_id"]) - (call == "GET get-output")  # the output is that of the run's task
        if run_id not in self.runs:
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": f"Run {run_id} does not exist."}
        if self.failing:  # the message is made up
            self.failing -= 1
            return 500, {"error_code": "INTERNAL_ERROR", "message": "The server failed."}
        if self.denied:  # so is this one
            return 403, {"error_code": "PERMISSION_DENIED", "message": "The token may not view this run."}
        ran = self.runs[run_id]
        if call == "POST cancel":
            ran.is_cancelled = True
            return 200, {}
        metadata = self._metadata(ran)
        return (200, {"metadata": metadata, "error": ran.error}) if call == "GET get-output" else (200, metadata)

    def _submit(self, request: Mapping[str, Any]) -> RecordedRun:
        for ran in self.runs.values():
            if ran.request["idempotency_token"] == request["idempotency_token"]:
                return ran
        run_id = 890553971536365 + 2 * len(self.runs)
        made = self.runs[run_id] = RecordedRun(run_id, request, self.state or PENDING, self.error)
        if self.state is None:
            made.process = self._start_process(request["tasks"][0], made)
        return made

    def _start_process(self, task: Mapping[str, Any], made: RecordedRun) -> subprocess.Popen[bytes]:
        bucket, key = bucket_and_key(task["spark_python_task"]["python_file"])
        script, driver = self.folder / "entry.py", self.folder / "driver.py"
        self.s3.download_file(bucket, key, str(script))
        driver.write_text(DRIVER)
        # A cluster has no settings of the client.
        theirs = {name: value for name, value in os.environ.items() if not name.startswith("DATABRICKS_")}
        program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        settings = {"spark.driver.memory": "1g", **task["new_cluster"].get("spark_conf", {})}
        command = [program, "--master", "local[2]", *(word for item in settings.items() for word in ("--conf", "=".join(item)))]
        output = (self.folder / f"{made.run_id}.log").open("wb")
        environment = {**theirs, "PYSPARK_PYTHON": sys.executable, **made.environment}
        return subprocess.Popen([*command, driver, script], env=environment, stdout=output, stderr=output)

    def _metadata(self, ran: RecordedRun) -> dict[str, Any]:
        if ran.is_cancelled:
            if ran.process is not None:
                ran.process.kill()
            ran.state = CANCELED if ran.state["life_cycle_state"] in {"PENDING", "RUNNING"} else ran.state
        elif ran.process is not None:
            code = ran.process.poll()
            ran.state = RUNNING if code is None else SUCCESS if code == 0 else FAILED
        run_id, page = ran.run_id, self.page(ran.run_id)
        task = {"run_id": run_id + 1, "task_key": ran.request["tasks"][0]["task_key"], "state": ran.state, "attempt_number": 0}
        return {
            "job_id": 625234784902960,
            "run_id": run_id,
            "number_in_job": run_id,
            "original_attempt_run_id": run_id,
            "state": ran.state,
            "start_time": 1750956453277,
            "trigger": "ONE_TIME",
            "run_name": ran.request["run_name"],
            "run_page_url": page,
            "run_type": "SUBMIT_RUN",
            "tasks": [task],
            "format": "MULTI_TASK",
        }


def _handler(workspace: Workspace) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(dict(parse_qsl(urlsplit(self.path).query)))

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, request: Mapping[str, Any]) -> None:
            *_, place, call = urlsplit(self.path).path.rpartition("/jobs/runs/")
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, response = (
                    401,
                    {"error_code": "UNAUTHENTICATED", "message": "Credential was not sent or was of an unsupported type."},
                )
            elif not place:
                status, response = 404, {"error_code": "ENDPOINT_NOT_FOUND", "message": f"No API found for {self.path}"}
            else:
                status, response = workspace.answer(f"{self.command} {call}", request)
            if call == "submit" and workspace.broken:
                workspace.broken -= 1
                self.close_connection = True
                return
            body = json.dumps(response).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Discard log messages."""

    return Handler


@contextmanager
def workspace(folder: Path, s3: Any = None) -> Iterator[Workspace]:
    made = Workspace(folder, s3)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(made))
    made.host = f"http://127.0.0.1:{server.server_port}"
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield made
    finally:
        for ran in made.runs.values():
            if ran.process is not None:
                ran.process.kill()
        server.shutdown()
        server.server_close()
