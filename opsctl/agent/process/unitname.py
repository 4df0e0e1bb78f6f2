"""Which unit of systemd or container a control group belongs to, by its name."""

from __future__ import annotations

import re
from typing import Optional, Tuple

# Services that processes live in without being what the service is for: a login, a job.
_NOT_SERVING = ("user@", "ssh", "cron", "atd", "systemd-", "docker", "containerd", "getty@", "supervisor")
_OF_A_USER = re.compile(r"/user@\d+\.service/(?:[^\n]*?/)?([^/\n]+\.service)(?:/|$)", re.M)
_OF_THE_SYSTEM = re.compile(r"/([^/\n]+\.service)(?:/|$)", re.M)


def of(group: str) -> Tuple[Optional[str], bool]:
    """The unit that a control group belongs to, None for none; and whether it is one of a user's own systemd."""
    of_a_user = _OF_A_USER.search(group)
    found = of_a_user or _OF_THE_SYSTEM.search(group)
    if found is None or found.group(1).startswith(_NOT_SERVING):
        return None, False
    return found.group(1), of_a_user is not None


def container(group: str) -> Optional[str]:
    """The id of the container that a control group belongs to; None for none."""
    found = re.search(r"(?:docker|libpod|cri-containerd)[-/]([0-9a-f]{12,64})", group)
    return found.group(1) if found else None
