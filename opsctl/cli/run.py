"""`opsctl run`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from opsctl.cli.options import Asked, runs
from opsctl.cli.playing import become_password, play, tell_usage
from opsctl.errors import UsageError

app = typer.Typer()


@app.command()
@runs()
def run(
    asked: Asked,
    playbook: Annotated[str, typer.Argument(help="A file, or the name of a playbook in playbooks/ or a shipped one.")],
    host: Annotated[
        str | None, typer.Option("--limit", "--host", "-l", metavar="PATTERN", help="Only these of the play's hosts.")
    ] = None,
    extra: Annotated[
        list[str] | None, typer.Option("--extra", "-e", metavar="NAME=VALUE", help="A param or variable; @FILE: many.")
    ] = None,
    strings: Annotated[
        list[str] | None, typer.Option("--set-string", metavar="NAME=TEXT", help="The same, always as text.")
    ] = None,
    tags: Annotated[list[str] | None, typer.Option("--tags", "-t", help="Only tasks with one of these tags.")] = None,
    skip_tags: Annotated[list[str] | None, typer.Option("--skip-tags", help="No tasks with one of these tags.")] = None,
    start_at: Annotated[
        str | None, typer.Option("--start-at-task", metavar="NAME", help="Leave out what comes before this task.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="RUN", help="Resume a run that stopped; `last`: the newest."),
    ] = None,
    ask_become: Annotated[
        bool, typer.Option("--ask-become-password", "-K", help="Ask once for the sudo password of the hosts.")
    ] = False,
    forks: Annotated[int, typer.Option("--forks", "-f", min=1, help="Hosts worked on at a time.")] = 32,
) -> int:
    """Run a playbook.

    Examples:

      opsctl run playbooks/deploy-drafter.yaml -e drafter=./my-drafter --limit blackwell

      opsctl run health --check --exit-code
    """
    from opsctl.engine.options import parse_given

    options = replace(
        asked.options(), playbook=playbook, given=parse_given(extra or (), strings or ()), tags=_words(tags),
        skip_tags=_words(skip_tags), start_at=start_at, at_once=forks,
    )  # fmt: skip
    if resume is not None:
        from opsctl.verbs.runs import resuming

        options = resuming(options, resume)
    try:
        password = become_password() if ask_become else None
        return play(options, asked.showing, password)
    except UsageError as error:
        tell_usage(error, asked.showing.output)
        raise


def _words(options: list[str] | None) -> list[str]:
    return [word for option in options or () for word in option.split(",") if word]
