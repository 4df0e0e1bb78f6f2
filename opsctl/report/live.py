"""On a terminal: the plain lines scroll by, and below them one line with a bar for each task in progress."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from opsctl.engine.events import Event, HostEnded, TaskEnded, TaskProgress, TaskStarted, UndoStep
from opsctl.report.plain import PlainView
from opsctl.secret import mask
from opsctl.text import one_line, printable

_MOST_BARS = 12
_STYLES = (
    ("FAILED", "red"), ("UNREACHABLE", "red"), ("NOT UNDONE", "red"), ("error:", "red"),
    ("would change", "yellow"), ("changed:", "yellow"), ("ran:", "yellow"), ("warning:", "yellow"),
    ("unknown", "magenta"), ("skipped", "dim"), ("undone", "cyan"), ("ok", "green"),
)  # fmt: skip


class LiveView(AbstractContextManager["LiveView"]):
    """Give it events between enter and exit."""

    def __init__(self, console: Console, *, diff: bool, verbose: bool) -> None:
        self._console = console
        self._plain = PlainView(self._print, diff=diff, verbose=verbose, live=True)
        self._bars = Progress(
            SpinnerColumn(), TextColumn("{task.fields[host]}", style="bold"), TextColumn("{task.description}"),
            BarColumn(bar_width=24), TextColumn("{task.fields[text]}", style="dim"), TimeElapsedColumn(),
            console=console,
        )  # fmt: skip
        self._live = Live(self._bars, console=console, refresh_per_second=8, transient=True)
        self._ids: dict[tuple[str, int], TaskID] = {}

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case TaskStarted():
                if len(self._ids) < _MOST_BARS:
                    self._ids[event.host, event.number] = self._bars.add_task(
                        _safe(event.task), total=None, host=_safe(event.host), text=""
                    )
            case TaskProgress():
                bar = self._ids.get((event.host, event.number))
                if bar is not None:
                    total = 1.0 if event.fraction is not None else None
                    self._bars.update(bar, total=total, completed=event.fraction or 0, text=_safe(event.text))
            case TaskEnded():
                bar = self._ids.pop((event.host, event.number), None)
                if bar is not None:
                    self._bars.remove_task(bar)
            case UndoStep() | HostEnded():  # a task that was interrupted has no end of its own
                for key in [key for key in self._ids if key[0] == event.host]:
                    self._bars.remove_task(self._ids.pop(key))
        self._plain(event)

    def _print(self, line: str) -> None:
        text = Text(line)
        for word, style in _STYLES:
            if word in line[:60]:
                text.stylize(style)
                break
        if line.startswith("    "):
            text.stylize({"+": "green", "-": "red", "@": "cyan"}.get(line[4:5], "none"))
        self._console.print(text, soft_wrap=True)


def _safe(text: str) -> str:
    from rich.markup import escape

    return escape(printable(mask(one_line(text, 60))))
