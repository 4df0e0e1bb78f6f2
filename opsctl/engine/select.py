"""Which tasks of a play run: tags, and where to start."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection

from opsctl.engine.tasks import Play, Task, walk
from opsctl.errors import UsageError
from opsctl.text import did_you_mean


def by_tags(task: Task, tags: Collection[str], skip: Collection[str]) -> bool:
    """Whether `--tags` and `--skip-tags` leave a task. Tasks tagged `always` run in any case, `never` only by name."""
    if task.tags & set(skip):
        return False
    if "never" in task.tags and not task.tags & set(tags):
        return False
    return not tags or bool(task.tags & {*tags, "always"})


def check_tags(plays: Collection[Play], tags: Collection[str]) -> None:
    """Raise UsageError for a tag that no task has."""
    known = {tag for play in plays for task in play.all_tasks() for tag in task.tags}
    for tag in tags:
        if tag not in known:
            raise UsageError(
                f"no task has the tag {tag!r}", hint=did_you_mean(tag, known) if known else "there are no tags"
            )


def start_number(plays: Collection[Play], name: str) -> tuple[int, int]:
    """The play and the number of the task called `name` (or matching it). Raises UsageError."""
    tasks = [(index, task) for index, play in enumerate(plays) for task in walk(play.tasks)]
    for index, task in tasks:
        if task.name == name or fnmatch.fnmatchcase(task.name, name):
            return index, task.number
    raise UsageError(f"there is no task {name!r} to start at", hint=did_you_mean(name, {t.name for _, t in tasks}))
