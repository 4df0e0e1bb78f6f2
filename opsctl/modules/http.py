"""HTTP requests made on the host."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from opsctl.modules.contract import Action, ModuleArgs, Outcome, Progress, Site
from opsctl.modules.fields import Pattern, Public, Statuses, Text, reveal, seal_headers
from opsctl.quantities import TimeLimit
from opsctl.text import one_line, size
from opsctl.wire.calls.core import Answered, http_request
from opsctl.wire.host import Host
from opsctl.wire.limits import read_json
from opsctl.wire.protocol import Call


class HttpArgs(ModuleArgs):
    url: Public = Field(description="Address, as seen from the host.", pattern=r"^https?://")
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: dict[str, Text] = Field(default={}, description="Headers of the request.")
    json_: Any = Field(None, alias="json", description="Content, sent as JSON.")
    content: Text | None = Field(None, description="Content, sent as it is.")
    status: Statuses = Field([200], description="Statuses that mean success.")
    contains: Pattern | None = Field(None, description="Regular expression that must be found in the answer.")
    timeout: TimeLimit = Field(30.0, description="Time to wait for the answer.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.json_ is not None and self.content is not None:
            raise ValueError("give either `json` or `content`")
        return self


class Http(Action[HttpArgs]):
    """Ask an address from the host itself, so that servers bound to its loopback are reached.

    The answer is registered as `status`, `headers`, `text` (its first MiB), and `json` where it is JSON. Secrets
    in headers and content stay out of arguments and logs. GET and HEAD also run in check mode.
    """

    name = "http"
    programs = frozenset({"curl", "wget"})
    args = HttpArgs
    free_form = "url"
    examples = """
- name: Is the server up?
  when: false
  http: {url: "http://127.0.0.1:30000/health", status: [200, 503]}
"""

    def reads_only(self, args: HttpArgs) -> bool:
        return args.method in ("GET", "HEAD")

    def run(self, args: HttpArgs, host: Host, site: Site, progress: Progress) -> Outcome:
        reply = host.call(call_of(args), timeout=args.timeout + 10)
        text = reply.body.decode("utf-8", "backslashreplace")
        values = {**reply.result, "text": text}
        cut = f"; more than {size(len(reply.body))} came: not read further" if reply.result["truncated"] else ""
        if "json" in reply.result["headers"].get("content-type", ""):
            try:
                values["json"] = read_json(reply.body)
            except ValueError as error:
                why = one_line(str(error)) + cut
                return Outcome(values, failed=f"{args.url}: the answer is said to be JSON, but {why}")
        status = reply.result["status"]
        if status not in args.status:
            wanted = " or ".join(map(str, args.status))
            return Outcome(values, failed=f"{args.url}: status {status}, not {wanted}: {one_line(text)}")
        if args.contains is not None and not re.search(args.contains, text):
            return Outcome(values, failed=f"{args.url}: {args.contains!r} is not in the answer{cut}: {one_line(text)}")
        return Outcome(values, measures={"seconds": reply.result["seconds"]})


def call_of(args: HttpArgs) -> Call[Answered]:
    content = json.dumps(args.json_) if args.json_ is not None else reveal(args.content or "")
    headers = dict(args.headers)
    if args.json_ is not None:
        headers.setdefault("Content-Type", "application/json")
    sealed, front = seal_headers(headers)
    return http_request(args.url, args.method, timeout=args.timeout, body=front + content.encode(), **sealed)
