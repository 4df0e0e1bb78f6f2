"""Draft models fetched from the web, by the controller or by the host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from opsctl import this_machine
from opsctl.errors import OpsctlError, RemoteError, TaskFailed
from opsctl.modules.contract import Action, ModuleArgs, Outcome, Progress, Site, passed_on
from opsctl.modules.fields import Text, reveal
from opsctl.text import size
from opsctl.wire.calls.checkpoint import Fetched, fetch_folder
from opsctl.wire.host import Host
from opsctl.wire.protocol import AgentError, Call

HUB = "https://huggingface.co"


class DrafterFetchArgs(ModuleArgs):
    source: str = Field(description="An https address of a folder, or ORG/NAME[@REVISION] of the Hugging Face hub.")
    by: Literal["controller", "host"] = Field("controller", description="Who fetches it.")
    token: Text | None = Field(
        None, description="Token of the hub or server, a secret; by default $HF_TOKEN of the controller, for the hub."
    )
    endpoint: str | None = Field(
        None, description="Address of the hub; by default $HF_ENDPOINT of the controller, or huggingface.co."
    )


class DrafterFetch(Action[DrafterFetchArgs]):
    """Fetch a draft model from the web into a folder that is kept, and give its `path` or `host_path`.

    Sizes, and digests where the server tells them (the hub does), are verified; what is there is not fetched again,
    and a download that was cut goes on. The token is sent to the named server only. Of a folder at an address,
    `config.json` and the weights are taken; of a repository, all files at its top but hidden ones.
    """

    name = "drafter_fetch"
    args = DrafterFetchArgs
    examples = """
- name: Fetch the drafter
  when: false
  drafter_fetch: {source: acme/k25-eagle3@v2, by: host}
  register: fetched
"""

    def run(self, args: DrafterFetchArgs, host: Host, site: Site, progress: Progress) -> Outcome:
        call = asked(args, os.environ)

        def stopped() -> bool:
            host.check()  # raises
            return False

        try:
            if args.by == "host":
                found = host.call(call, on_progress=passed_on(progress)).result
            else:
                found = this_machine.call(call, on_progress=passed_on(progress), cancelled=stopped).result
        except (AgentError, RemoteError) as error:
            raise _explained(error, args.source) from None
        where = {"path": None, "host_path": None, ("host_path" if args.by == "host" else "path"): found["path"]}
        fetched = size(found["fetched"]) if found["fetched"] else "nothing"
        told = f"{found['files']} files, {size(found['size'])}, {fetched} fetched"
        old = tuple(f"removed {path}: nobody has asked for it in two weeks" for path in found["removed"])
        values = {key: value for key, value in found.items() if key != "path"}
        return Outcome(values={**where, **values}, lines=(told, *old))


def asked(args: DrafterFetchArgs, environment: Mapping[str, str]) -> Call[Fetched]:
    """The call that fetches; the token travels in its body, which nobody keeps."""
    from opsctl.secret import Secret

    is_hub = "://" not in args.source
    source, _, revision = args.source.partition("@") if is_hub else (args.source, "", "")
    token = args.token or (Secret(environment["HF_TOKEN"]) if is_hub and environment.get("HF_TOKEN") else None)
    endpoint = args.endpoint or environment.get("HF_ENDPOINT") or HUB
    return fetch_folder(source, endpoint, revision or "main", body=reveal(token).encode() if token else b"")


def _explained(error: AgentError | RemoteError, source: str) -> OpsctlError:
    if error.kind == "permission" and error.fields.get("token"):
        hint = "give a token that may read it: HF_TOKEN in the environment, or `token` of the task"
    elif error.kind == "not-found":
        hint = "is it spelled as on the server, and public? A private one needs a token"
    else:
        hint = None
    return TaskFailed(f"cannot fetch {source}: {error}", hint=hint)
