"""The live progress display, in a module of its own because importing rich is slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, Task, TextColumn
from rich.text import Text

from gc_assets.core.progress_rate import format_seconds

if TYPE_CHECKING:
    from gc_assets.engine.progress import StageProgress

_BAR_WIDTH: Final = 20


class _OptionalBarColumn(BarColumn):
    """A progress bar that is hidden while the total is unknown."""

    def render(self, task: Task) -> RenderableType:  # pyright: ignore[reportIncompatibleMethodOverride]  (rich renders any renderable)
        return super().render(task) if task.total is not None else Text("")


class ProgressDisplay(Progress):
    """A live display with a title, the current activity and its progress.

    Args:
        current: Called on every refresh. Returns the title, and the progress of the current work
            if there is any.
        console: The terminal.
        refresh_per_second: How often the display is updated.
    """

    def __init__(self, current: Callable[[], tuple[str, StageProgress | None]], console: Console, *, refresh_per_second: float) -> None:
        self._current = current
        super().__init__(
            TextColumn(""),  # indents the line
            _OptionalBarColumn(bar_width=_BAR_WIDTH),
            TextColumn("{task.description}", markup=False),
            console=console,
            refresh_per_second=refresh_per_second,
            transient=True,
            redirect_stdout=False,
        )
        self.add_task("", total=None)

    def get_renderables(self) -> Iterable[RenderableType]:
        title, work = self._current()
        yield Text(title, style="bold", no_wrap=True, overflow="ellipsis")
        if work is not None:
            for activity in (work.outer_activity, work.activity):
                if activity:
                    yield Text(f"  {activity}", no_wrap=True, overflow="ellipsis")
            self._update_task(work)
            yield self.make_tasks_table(self.tasks)

    def _update_task(self, work: StageProgress) -> None:
        if not self.tasks:
            return  # rich renders for the first time before the task exists
        rate = f"{work.rate}, " if work.rate is not None else ""
        share = work.rate.share if work.rate is not None and self.console.width >= 3 * _BAR_WIDTH else None
        task = self.tasks[0]
        task.total, task.completed = (1.0, share) if share is not None else (None, 0.0)
        task.description = f"{rate}{format_seconds(work.seconds)} so far"
