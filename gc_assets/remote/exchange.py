"""How Dagster and a job of a service hear of each other: by objects of S3, while a Pipes client of
Dagster waits for the job's end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Final, Protocol

from dagster_aws.pipes import PipesS3ContextInjector, PipesS3MessageReader

from gc_assets.config.s3 import Places
from gc_assets.core.errors import GcError
from gc_assets.core.paths import bucket_and_key
from gc_assets.s3.client import get_client

EXCHANGE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.5


class StartedJob(Protocol):
    """The job that a client started, or is about to start."""

    def cancel(self) -> None:
        """Cancels the job, at once or as soon as it was started."""
        ...

    def describe_end(self, error: BaseException) -> str:
        """Returns the sentence for a job by which the client failed with an error. A job that goes on
        is cancelled: nobody would hear of what it does.
        """
        ...


class Exchange:
    """A place on S3 below which a request and its reports lie."""

    def __init__(self, place: str, places: Places) -> None:
        bucket, prefix = bucket_and_key(f"{place.rstrip('/')}/")
        s3 = get_client(places.s3_of(place), "read")
        self.injector = _ContextInjector(bucket=bucket, client=s3, key_prefix=prefix)
        self.reader = _MessageReader(s3, bucket, prefix)

    def reports(self, run: Callable[[], object], started: StartedJob) -> Iterator[Any]:
        """Yields what a job reports while `run` waits for its end. Where this is interrupted the job
        is cancelled, and its end waited for. Raises `GcError` where `run` failed.
        """
        heard = 0
        with ThreadPoolExecutor(1) as beside:
            waiting = beside.submit(run)
            try:
                while not waiting.done():
                    wait([waiting], _POLL_SECONDS)
                    said = self.reader.messages()
                    yield from said[heard:]
                    heard = len(said)
            except BaseException:
                started.cancel()
                raise
        yield from self.reader.messages()[heard:]
        if (error := waiting.exception()) is not None:
            raise GcError(started.describe_end(error))


class _ContextInjector(PipesS3ContextInjector):
    """Puts what is asked for below a prefix, and takes it away however the job ends. dagster-aws
    leaves that of a job that failed: whoever repeated it on the page of the service would ask for it
    again.
    """

    @contextmanager
    def inject_context(self, context: Any) -> Generator[Any]:
        with super().inject_context(context) as place:
            try:
                yield place
            finally:
                self.client.delete_object(Bucket=place["bucket"], Key=place["key"])


class _MessageReader(PipesS3MessageReader):
    """Reads the reports below a prefix, and shows them before the job ends."""

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
