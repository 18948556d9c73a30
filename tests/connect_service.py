"""Run a Spark Connect server like a managed one: with a token, over TLS, and with a Python without gc-assets."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection

import pyspark

from tests.cluster import create_environment, spark_environment
from tests.ports import free_port
from tests.s3.daemons import daemons

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
TOKEN = "a token with a + and a ="  # noqa: S105


@dataclass(frozen=True)
class Service:
    """A running server. `remote` is its address, clients need `environment` to trust it, and `python` runs its tasks."""

    remote: str
    python: Path
    environment: dict[str, str]


@contextmanager
def run_service(folder: Path) -> Iterator[Service]:
    home, port, python = Path(pyspark.__file__).parent, free_port(), create_environment(folder / "python", [])
    own = {**spark_environment(home), "PYSPARK_PYTHON": str(python), "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN}
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "700m",
        "spark.ui.enabled": "false",
    }
    settings = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    with daemons(folder / "log", own) as group:
        group.start(str(home / "bin" / "spark-submit"), "--class", CLASS, "--master", "local[2]", *settings, "spark-internal")
        group.wait(lambda: _listens(port))
        with _tls(folder, port) as (front, trusted):
            yield Service(f"sc://localhost:{front}/;use_ssl=true", python, {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(trusted)})


def _listens(port: int) -> bool:
    try:
        create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def _tls(folder: Path, target_port: int) -> Iterator[tuple[int, Path]]:
    """Run a TLS proxy for a port. Yield its own port and the certificate to trust."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2")
    command = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *subject)
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    loop, front = asyncio.new_event_loop(), free_port()

    async def forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while content := await source.read(65_536):
                target.write(content)
                await target.drain()
        target.close()

    async def accept(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        to, back = await asyncio.open_connection("127.0.0.1", target_port)
        await asyncio.gather(forward(source, back), forward(to, target))

    server = loop.run_until_complete(asyncio.start_server(accept, "127.0.0.1", front, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield front, certificate
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
