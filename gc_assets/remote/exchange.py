"""Exchange requests and reports with a remote job through S3 objects, using Dagster Pipes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Final, Protocol

from dagster_aws.pipes import PipesS3ContextInjector, PipesS3MessageReader

from gc_assets.config.connections import Connections
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import GcError
from gc_assets.core.paths import bucket_and_key
from gc_assets.s3.client import get_client

EXCHANGE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.5


class StartedJob(Protocol):
    """A job that a client has started or will start soon."""

    def cancel(self) -> None:
        """Cancel the job, or cancel it as soon as it is started."""
        ...

    def describe_end(self, error: BaseException) -> str:
        """Describe how the job ended, after the client failed with `error`.

        If the job is still running, it is cancelled, because its reports can no longer be read.
        """
        ...


class Exchange:
    """The S3 prefix under which the objects of a job's request and reports are written."""

    def __init__(self, address: str, places: Connections) -> None:
        bucket, prefix = bucket_and_key(f"{address.rstrip('/')}/")
        s3 = get_client(places.settings_for(address, S3Config), "read")
        self.injector = _ContextInjector(bucket=bucket, client=s3, key_prefix=prefix)
        self.reader = _MessageReader(s3, bucket, prefix)

    def reports(self, run: Callable[[], object], started: StartedJob) -> Iterator[Any]:
        """Yield the reports of a job while another thread waits for the job to end.

        If the iteration is interrupted, the job is cancelled, and this call waits until it ends.

        Args:
            run: Starts the job and waits for its end.
            started: The job that `run` starts.

        Raises:
            GcError: If the job failed, or if its result is unknown.
        """
        count = 0
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(run)
            try:
                while not waiting.done():
                    wait([waiting], _POLL_SECONDS)
                    messages = self.reader.messages()
                    yield from messages[count:]
                    count = len(messages)
            except BaseException:
                started.cancel()
                raise
        yield from self.reader.messages()[count:]
        if (error := waiting.exception()) is not None:
            raise GcError(started.describe_end(error))


class _ContextInjector(PipesS3ContextInjector):
    """Writes the request of a job under a prefix, and deletes it even if the job fails.

    dagster-aws would keep the request of a failed job, so a user who repeats the job on the page of
    the service would execute the same request again.
    """

    @contextmanager
    def inject_context(self, context: Any) -> Generator[Any]:
        with super().inject_context(context) as location:
            try:
                yield location
            finally:
                self.client.delete_object(Bucket=location["bucket"], Key=location["key"])


class _MessageReader(PipesS3MessageReader):
    """Reads the reports of a job under a prefix while the job runs."""

    def __init__(self, s3: Any, bucket: str, prefix: str) -> None:
        super().__init__(interval=EXCHANGE_SECONDS, bucket=bucket, client=s3)
        self._prefix = prefix
        self._handler: Any = None

    def messages(self) -> Sequence[Any]:
        return () if self._handler is None else self._handler.get_custom_messages()

    def read_messages(self, handler: Any) -> Any:
        self._handler = handler
        return super().read_messages(handler)

    @contextmanager
    def get_params(self) -> Generator[dict[str, Any]]:
        with super().get_params() as params:
            yield {**params, "key_prefix": f"{self._prefix}{params['key_prefix']}"}
