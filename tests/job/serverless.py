"""EMR Serverless and S3, simulated by moto on the loopback interface.

moto only records job runs. A thread downloads their entry point, runs spark-submit with their
parameters, and records the result.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import boto3
import pyspark
import pytest
from dagster._core.pipes import utils
from moto.emrserverless import models
from moto.server import ThreadedMotoServer

from gc_assets.core.paths import bucket_and_key
from gc_assets.remote import exchange
from gc_assets.resources.java import ensure_java_home
from gc_assets.s3 import client

REGION = "eu-west-1"
ROLE = "arn:aws:iam::123456789012:role/gc"
BUCKET = "jobs"
ENVIRONMENT = "spark.emr-serverless.driverEnv."
# Set for the driver where EMR starts it, as the role of the job run does it there.
_USER = {"AWS_ACCESS_KEY_ID": "moto", "AWS_SECRET_ACCESS_KEY": "moto", "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}


@dataclass
class Serverless:
    """One application. `runs` are its job runs as in the API."""

    folder: Path
    emr: Any
    s3: Any
    application_id: str
    seen: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def runs(self) -> list[Any]:
        return [
            run
            for backend in models.emrserverless_backends["123456789012"].values()
            for run in backend.job_runs.get(self.application_id, [])
        ]

    def execute_run(self, over: threading.Event) -> None:
        while not over.wait(0.1):
            for run in self.runs:
                if run.id not in self.seen:
                    self.seen[run.id] = self._start_thread(run)
                process = self.seen[run.id]
                if run.state in {"CANCELLED", "CANCELLING"}:
                    process.kill()
                elif process.poll() is None:
                    run.state = "RUNNING"
                elif run.state == "RUNNING":
                    run.state, run.state_details = ("SUCCESS", None) if process.returncode == 0 else ("FAILED", "the driver failed")

    def _start_thread(self, run: Any) -> subprocess.Popen[bytes]:
        request = run.job_driver["sparkSubmit"]
        command = shlex.split(request["sparkSubmitParameters"])
        settings = [word for flag, word in pairwise(command) if flag == "--conf"]
        ours = dict(word.removeprefix(ENVIRONMENT).split("=", 1) for word in settings if word.startswith(ENVIRONMENT))
        bucket, key = bucket_and_key(request["entryPoint"])
        script = self.folder / "entry.py"
        self.s3.download_file(bucket, key, str(script))
        program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        output = (self.folder / f"{run.id}.log").open("wb")
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **ours}
        return subprocess.Popen([program, *command, script], env=environment, stdout=output, stderr=output)


@contextmanager
def aws(bucket: str) -> Iterator[Any]:
    """Start moto with one bucket for this process and its children, and poll jobs every second."""
    ensure_java_home()
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            host, port = server.get_host_and_port()
            client.create_process_client.cache_clear()  # those of another server, in the same process
            for name, value in {**_USER, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
                patch.setenv(name, value)
            patch.setattr(exchange, "EXCHANGE_SECONDS", 1.0)
            patch.setattr(utils, "WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 1)  # seconds for the last words of a job that has none
            s3 = boto3.client("s3")
            s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
            yield s3
    finally:
        client.create_process_client.cache_clear()
        server.stop()


@contextmanager
def serverless(folder: Path) -> Iterator[Serverless]:
    over = threading.Event()
    with aws(BUCKET) as s3, pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "JOB_STATUS", "SUBMITTED")  # moto's own runs have ended when they begin
        emr = boto3.client("emr-serverless")
        application = emr.create_application(name="gc", releaseLabel="emr-7.9.0", type="SPARK")["applicationId"]
        made = Serverless(folder, emr, s3, application)
        carrier = threading.Thread(target=made.execute_run, args=(over,))
        carrier.start()
        try:
            yield made
        finally:
            over.set()
            carrier.join()
            for process in made.seen.values():
                process.kill()
