"""Finding and making calls by name, and putting what went wrong into words the controller can act on."""

from __future__ import annotations

import errno
import importlib
from typing import TYPE_CHECKING, Any, Callable, Dict, List, cast

from opsctl.wire.areas import module_of
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls.core import Fault

KINDS = {
    errno.ENOENT: "not-found",
    errno.ENOTDIR: "not-found",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.ENOSPC: "no-space",
    errno.EDQUOT: "no-space",
    errno.EROFS: "read-only",
    errno.EEXIST: "exists",
    errno.ENOTEMPTY: "exists",
    errno.EBUSY: "busy",
    errno.ETXTBSY: "busy",
    errno.ETIMEDOUT: "timeout",
    errno.ENAMETOOLONG: "invalid",
    errno.EISDIR: "invalid",
    errno.EINVAL: "invalid",
}


def find(name: str) -> Callable[..., Any]:
    """The function behind a call name. Raises AgentError invalid."""
    found = getattr(_module(name), "CALLS", {}).get(name.partition(".")[2])
    if found is None:
        raise AgentError("invalid", "%r is no call" % name)
    return found  # type: ignore[no-any-return]


def lacking(name: str, args: Dict[str, Any], context: Context) -> List[str]:
    """What a call that takes something back needs and is not there any more, a sentence each; it looks, and no more."""
    looks = getattr(_module(name), "NEEDS", {}).get(name.partition(".")[2])
    return [] if looks is None else looks(context, **args)


def foreseen(name: str, args: Dict[str, Any], context: Context) -> Any:
    """What a call that takes something back would make of the content of a file, see files.foreseen; it only looks."""
    looks = getattr(_module(name), "FORESEEN", {}).get(name.partition(".")[2])
    return None if looks is None else looks(context, **args)


def _module(name: str) -> Any:
    where = module_of(name)
    if where is None:
        raise AgentError("invalid", "%r is no call" % name)
    return importlib.import_module("opsctl." + where)


def invoke(name: str, args: Dict[str, Any], context: Context) -> Reply[Any]:
    """Make a call. Raises whatever the call raises."""
    return as_reply(find(name)(context, **args))


def as_reply(result: Any) -> Reply[Any]:
    """What the function behind a call has returned, as a reply."""
    return result if isinstance(result, Reply) else Reply(result)


def describe(error: BaseException) -> Fault:
    """An exception as the `error` of a frame."""
    if isinstance(error, AgentError):
        return cast("Fault", dict(error.fields, kind=error.kind, message=error.message))
    if isinstance(error, OSError) and error.errno is not None:
        told: Dict[str, Any] = {"kind": KINDS.get(error.errno, "failed"), "errno": error.errno}
        path = _text(error.filename) if error.filename is not None else None
        told["message"] = "%s: %s" % (path, error.strerror) if path else str(error.strerror)
        if path:
            told["path"] = path
        return cast("Fault", told)
    # Anything else is a fault in the agent itself: say where, so that it can be reported.
    import traceback  # it takes long to load, and is needed for nothing else

    trace = traceback.format_exception(type(error), error, error.__traceback__)
    said = "%s: %s" % (type(error).__name__, error)
    return cast("Fault", {"kind": "failed", "message": said, "trace": "".join(trace[-8:])})


def _text(path: Any) -> str:
    return path.decode("utf-8", "backslashreplace") if isinstance(path, bytes) else str(path)
