"""The JARs with which Spark reads S3 itself: hadoop-aws, and the modules of the AWS SDK that
reading needs.

hadoop-aws depends on the SDK's bundle of 690 MB. The single modules are enough (14 MB). JARs of
pyspark are left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pyspark

from tests.s3.servers import S3Server, Unavailable

# Versions of the POM of hadoop-project 3.5.0.
SDK, ACCELERATOR = "2.35.4", "1.3.1"
MODULES = ("s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
PYSPARK_GROUPS = "io.netty,org.apache.httpcomponents,commons-codec,commons-logging,org.slf4j"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def hadoop_version() -> str:
    (client,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    return client.stem.removeprefix("hadoop-client-api-")


def fetch() -> list[Path]:
    """Fetch the JARs once, with Maven, and return them. Raises `Unavailable` if this is impossible."""
    hadoop = hadoop_version()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gc-assets" / f"s3a-{hadoop}-{SDK}"
    if not cache.is_dir():
        maven = shutil.which("mvn")
        if maven is None:
            raise Unavailable("hadoop-aws is fetched by Maven and there is no mvn: apt-get install -y maven")
        download = cache.with_name(f".fetching-{os.getpid()}")
        download.mkdir(parents=True)
        (download / "pom.xml").write_text(_pom(hadoop))
        jars = download / "jars"
        options = [f"-DoutputDirectory={jars}", "-DincludeScope=runtime", f"-DexcludeGroupIds={PYSPARK_GROUPS}"]
        done = subprocess.run(
            [maven, "-q", "-B", "-U", "-f", str(download / "pom.xml"), PLUGIN, *options], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Unavailable(f"Maven cannot fetch hadoop-aws {hadoop}: {(done.stdout + done.stderr).strip()[-2000:]}")
        jars.rename(cache)
        shutil.rmtree(download)
    return sorted(cache.glob("*.jar"))


def settings(server: S3Server) -> dict[str, str]:
    """Return Spark's settings for a server, as in docs/configuration.md."""
    options = {
        "endpoint": server.endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": server.access_key,
        "secret.key": server.secret_key,
    }
    return {"spark.jars": ",".join(map(str, fetch())), **{f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items()}}


def _pom(hadoop: str) -> str:
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = [
        ("org.apache.hadoop", "hadoop-aws", hadoop, alone),
        ("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", ACCELERATOR, alone),
        *(("software.amazon.awssdk", module, SDK, "") for module in MODULES),
    ]
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>{more}</dependency>"
        for group, name, version, more in wanted
    )
    own = "<modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>s3a</artifactId><version>1</version>"
    return f"<project>{own}<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
