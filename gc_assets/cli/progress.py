"""Progress output of commands on standard error.

On a terminal, a live display is drawn with `rich.progress`. If standard error is redirected, a line
is printed whenever there has been no output for ten seconds. With `-v`, the log lines of
`gc_assets/engine/progress.py` are printed instead of either.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from gc_assets.cli.output import print_message
from gc_assets.engine.progress import SILENCE_SECONDS, StageProgress, current_work, measure_work

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from gc_assets.cli.dagster_run import PublishedAsset

_REFRESHES_PER_SECOND: Final = 2


class CommandProgress:
    """The current activity of a command: the stage that is running, or work between stages."""

    def __init__(self) -> None:
        self._activity = ""
        self._since = time.monotonic()
        self._assets: int | None = None
        self._finished = 0
        self.printed_at = time.monotonic()
        # The output stream for lines, or None for the current standard error.
        self._lines: TextIO | None = None
        self._is_announced = False

    def print_lines_to(self, stream: TextIO) -> None:
        """Print announcements and progress lines to a stream, because there is no live display."""
        self._lines, self._is_announced = stream, True

    def announce(self, work: str) -> None:
        """Print that an activity starts, unless the live display or the log already shows it."""
        if self._is_announced:
            self.print_line(f"  {work}")

    def set_activity(self, text: str) -> None:
        """Set the activity to display while no stage is running."""
        self._activity, self._since = text, time.monotonic()

    def start_assets(self, assets: int) -> None:
        self._assets = assets
        self.set_activity("")

    def finish_asset(self, step: PublishedAsset) -> None:
        """Print the rows and the duration of a finished asset."""
        self._finished += 1
        rows = f"{step.rows:>14,} {'row ' if step.rows == 1 else 'rows'}" if step.rows is not None else " " * 19
        self.print_line(f"  {step.group + '/' + step.asset:<40}{rows}{step.seconds:>8.1f} s")

    def print_line(self, line: str) -> None:
        self.printed_at = time.monotonic()
        print_message(line, stream=self._lines)

    def current(self) -> tuple[str, StageProgress | None]:
        """Return the title of the display, and the progress of the current stage, if known."""
        work = current_work()
        count = f"{self._finished + 1:,} of {self._assets:,}  " if self._assets is not None and self._finished < self._assets else ""
        if work is not None:
            return count + work.name, work
        if self._activity:
            return count + self._activity, StageProgress("", "", time.monotonic() - self._since, None)
        return f"asset {count.strip()}" if count else "", None


@contextmanager
def show_progress(progress: CommandProgress, *, verbose: bool) -> Generator[CommandProgress]:
    """Display the progress for the duration of the block.

    Lines that were printed stay on the terminal when the live display disappears.
    """
    with ExitStack() as display:
        if not verbose:
            is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
            display.enter_context(_live_display(progress) if is_terminal else _regular_lines(progress))
        yield progress


@contextmanager
def show_work(name: str, *, verbose: bool) -> Generator[CommandProgress]:
    """Display the progress of a command that only reads, using its name as the title."""
    with show_progress(CommandProgress(), verbose=verbose) as progress, measure_work(name):
        yield progress


@contextmanager
def _regular_lines(progress: CommandProgress) -> Generator[None]:
    """Print a line whenever there has been no output for `SILENCE_SECONDS`."""
    with _terminal() as stream:
        progress.print_lines_to(stream)
        with _lines_after_silence(progress):
            yield


@contextmanager
def _lines_after_silence(progress: CommandProgress) -> Generator[None]:
    ended = threading.Event()

    def print_regularly() -> None:
        while not ended.wait(max(0.01, progress.printed_at + SILENCE_SECONDS - time.monotonic())):
            if time.monotonic() - progress.printed_at >= SILENCE_SECONDS:
                title, work = progress.current()
                outer = f" ({work.outer_activity})" if work is not None and work.outer_activity else ""
                progress.print_line(f"  {title}{outer}: {work}" if work is not None else f"  {title}".rstrip())

    thread = threading.Thread(target=print_regularly, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _live_display(progress: CommandProgress) -> Generator[None]:
    from rich.console import Console

    with _terminal() as terminal, build_display(progress, Console(file=terminal, force_terminal=True, highlight=False)):
        yield


@contextmanager
def _terminal() -> Generator[TextIO]:
    """Yield a copy of standard error that stays usable while starting Spark redirects the original."""
    try:
        copy = os.dup(sys.stderr.fileno())
    except (OSError, io.UnsupportedOperation):
        yield sys.stderr
        return
    with open(copy, "w", 1, encoding=sys.stderr.encoding, errors="replace") as terminal:  # noqa: PTH123  (a file descriptor has no path)
        yield terminal


def build_display(progress: CommandProgress, console: Console) -> Progress:
    """Create the live display, which refreshes itself twice a second."""
    from gc_assets.cli.progress_display import ProgressDisplay

    return ProgressDisplay(progress.current, console, refresh_per_second=_REFRESHES_PER_SECOND)
