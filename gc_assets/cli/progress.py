"""Shows on standard error how far a command is: lines that change on a terminal, elsewhere a line
every ten seconds.

The words are those of the stages' log lines (`engine/progress.py`). Whoever reads the log itself
(`-v`) is shown nothing beside it.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

from gc_assets.cli.output import print_message
from gc_assets.engine.progress import SILENCE_SECONDS, StageProgress, current_work

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gc_assets.cli.dagster_run import PublishedAsset

_A_SECOND: Final = 2
_BAR_WIDTH: Final = 20


class Progress:
    """What a display shows: the stage at work, and outside of stages what the command is `doing`."""

    def __init__(self) -> None:
        self._doing = ""
        self._since = time.monotonic()
        self._assets: int | None = None
        self._made = 0
        self.spoke_at = time.monotonic()

    def set_activity(self, text: str) -> None:
        """Names what begins now, as long as no stage is at work."""
        self._doing, self._since = text, time.monotonic()

    def start_assets(self, assets: int) -> None:
        self._assets = assets
        self.set_activity("")

    def finish_asset(self, step: PublishedAsset) -> None:
        """Counts an asset as made, and says it in a line that stays."""
        self._made += 1
        rows = f"{step.rows:>14,} rows" if step.rows is not None else " " * 19
        self.say(f"  {step.group + '/' + step.asset:<40}{rows}{step.seconds:>8.1f} s")

    def say(self, line: str) -> None:
        self.spoke_at = time.monotonic()
        print_message(line)

    def now(self) -> tuple[str, StageProgress | None]:
        """Returns a title and the work that it is of; null where only the title can be told."""
        work = current_work()
        count = f"{self._made + 1:,} of {self._assets:,}  " if self._assets is not None and self._made < self._assets else ""
        if work is not None:
            return count + work.name, work
        if self._doing:
            return count + self._doing, StageProgress("", "", time.monotonic() - self._since, None)
        return count.strip(), None


@contextmanager
def show_progress(progress: Progress, *, verbose: bool) -> Generator[Progress]:
    """Shows the progress until the block ends. What was shown then goes from the terminal, and what
    was said stays.
    """
    with ExitStack() as display:
        if not verbose:
            is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
            display.enter_context(_live(progress) if is_terminal else _lines(progress))
        yield progress


@contextmanager
def _lines(progress: Progress) -> Generator[None]:
    """Breaks every silence by a line."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(max(0.01, progress.spoke_at + SILENCE_SECONDS - time.monotonic())):
            if time.monotonic() - progress.spoke_at >= SILENCE_SECONDS:
                title, work = progress.now()
                within = f" ({work.outer_activity})" if work is not None and work.outer_activity else ""
                progress.say(f"  {title}{within}: {work}" if work is not None else f"  {title}".rstrip())

    thread = threading.Thread(target=beat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _live(progress: Progress) -> Generator[None]:
    from rich.console import Console
    from rich.live import Live

    with _terminal() as terminal:
        console = Console(file=terminal, force_terminal=True, highlight=False)
        live = Live(
            console=console,
            get_renderable=lambda: drawn(progress, console.width),
            refresh_per_second=_A_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        with live:
            yield


@contextmanager
def _terminal() -> Generator[TextIO]:
    """Opens standard error a second time: while Spark starts, the first is a file."""
    try:
        copy = os.dup(sys.stderr.fileno())
    except (OSError, io.UnsupportedOperation):
        yield sys.stderr
        return
    with open(copy, "w", encoding=sys.stderr.encoding, errors="replace") as terminal:  # noqa: PTH123  (a number has no path)
        yield terminal


def drawn(progress: Progress, width: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    title, work = progress.now()
    lines: list[Any] = [Text(title, style="bold", no_wrap=True, overflow="ellipsis")]
    if work is not None:
        lines += [Text(f"  {text}", no_wrap=True, overflow="ellipsis") for text in (work.outer_activity, work.activity) if text]
        lines.append(_bar(work, width))
    return Group(*lines)


def _bar(work: StageProgress, width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from gc_assets.core.progress_rate import format_seconds

    told = Text(f"{work.rate}, " if work.rate is not None else "", no_wrap=True, overflow="ellipsis")
    told.append(f"{format_seconds(work.seconds)} so far")
    share = work.rate.share if work.rate is not None else None
    bar = [ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH)] if share is not None and width >= 3 * _BAR_WIDTH else []
    grid = Table.grid(padding=(0, 1))
    grid.add_row("", *bar, told)
    return grid
