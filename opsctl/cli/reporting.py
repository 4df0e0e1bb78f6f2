"""How every command that checks something reports to CI: --output, --junit and --summary."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from opsctl.cli.options import Output
from opsctl.cli.terminal import write_file
from opsctl.errors import OpsctlError, UsageError
from opsctl.secret import mask, revealed
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.findings import Finding
    from opsctl.verbs.frontend import Done

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reporting:
    """Where findings go. `as_json`: the command prints its one JSON object, and nothing else on stdout."""

    command: str
    output: Output = "human"
    junit: Path | None = None
    summary: Path | None = None
    as_json: bool = False

    @property
    def _for_people_only(self) -> bool:
        return self.output == "human" and not (self.junit or self.summary)

    def tell(self, findings: Callable[[], Sequence[Finding]], exit_code: int, show: Callable[[], None]) -> None:
        """Show the result and write the reports. `show` prints it, for people or as the JSON object."""
        if self._for_people_only:
            show()
            return
        from opsctl.report.ci import from_here

        found = [from_here(one) for one in findings()]
        self._print(found, exit_code, show)
        self._write(found, exit_code)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """An error that ends the command reaches the CI too, and goes on."""
        try:
            yield
        except OpsctlError as error:
            if self._for_people_only:
                raise
            from opsctl.findings import Finding

            found = [Finding.of(error)]
            self._print(found, error.exit_code, lambda: None)
            with suppress(UsageError):  # what ended the command matters more than a file that cannot be written
                self._write(found, error.exit_code)
            raise

    def _print(self, found: Sequence[Finding], exit_code: int, show: Callable[[], None]) -> None:
        if self.as_json or self.output == "human":
            show()
        elif self.output == "jsonl":
            from opsctl.report.findings import json_lines

            for line in json_lines(self.command, found, exit_code):
                typer.echo(line)
        elif text := mask(_printed(show)):
            typer.echo(_github_group(self.command, text) if self.output == "github" else text, nl=False)
        if self.output == "github" and not self.as_json:
            from opsctl.report.ci import github, remarks

            for one in remarks(found):
                typer.echo(github(one))

    def _write(self, found: Sequence[Finding], exit_code: int) -> None:
        from opsctl.report import findings

        if self.output == "gitlab":
            from opsctl.report.ci import GITLAB_REPORT, gitlab, remarks

            write_file(GITLAB_REPORT, gitlab(remarks(found)))
        if self.junit:
            write_file(self.junit, findings.junit(f"opsctl {self.command}", found))
        if self.summary:
            write_file(self.summary, findings.markdown(f"opsctl {self.command}", found, exit_code), append=True)


def lost_hosts(done: Sequence[Done[T]]) -> list[Finding]:
    """The hosts that could not be looked at, as failures."""
    from opsctl.findings import Finding

    lost = [(Finding.of(one.error), one.host.place) for one in done if one.error]
    return [replace(finding, place=finding.place or place) for finding, place in lost]


def _printed(show: Callable[[], None]) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        show()
    return "\n".join(map(printable, printed.getvalue().split("\n")))


def _github_group(title: str, text: str) -> str:
    """The text in a fold of the log, where a line of a host's that looks like a workflow command is none."""
    from opsctl.report.ci import github_fence, github_group, github_mask

    masks = [github_mask(secret) for secret in sorted(revealed())]
    return "\n".join([*masks, github_group(f"opsctl {title}"), github_fence(text.rstrip("\n")), "::endgroup::", ""])
