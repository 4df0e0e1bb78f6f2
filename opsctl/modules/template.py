"""Files rendered from templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from opsctl.errors import UsageError
from opsctl.localfiles import read_text
from opsctl.modules.contract import Change, Module, Site
from opsctl.modules.fields import HostPath
from opsctl.modules.paths import Placed, holds_secret, look, place
from opsctl.wire.protocol import Call, Reply


class TemplateArgs(Placed):
    src: str = Field(description="Template: beside the playbook, in templates/ of the project, or a shipped one.")
    dest: HostPath = Field(description="The file on the host.")
    secret: bool = Field(False, description="Never show its content; implied where a secret is rendered into it.")


class Template(Module[TemplateArgs]):
    """Write a file rendered from a Jinja2 template with the variables of the task.

    An undefined variable is an error that names it; the file is replaced in one step.
    """

    name = "template"
    src = "templates"
    args = TemplateArgs
    examples = """
- name: Launch script
  vars: {greeting: hello}
  template: {src: greeting.txt.j2, dest: "{{ scratch }}/greeting.txt", mode: "0600"}
"""

    def observe(self, args: TemplateArgs, site: Site) -> Sequence[Call[Any]]:
        _rendered(args, site)  # a mistake in the template is told before any host is touched
        return (look(args.dest, args.follow, whom=args.whom()),)

    def plan(self, args: TemplateArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        rendered = _rendered(args, site)
        return place(args.dest, rendered.encode(), seen[0], args, site, args.secret or holds_secret(rendered))


def _rendered(args: TemplateArgs, site: Site) -> str:
    path = site.find("templates", args.src)
    try:
        text = read_text(path)
    except OSError as error:
        raise UsageError(f"cannot read the template {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"template {path} is not UTF-8 text", hint="use `copy` for binary files") from None
    return site.render(text, str(path))
