"""paramiko's transport without the round trips that it waits and need not.

paramiko waits for the server's new keys, for the login service, for the login and for the channel, a round trip each,
and the server's Nagle algorithm adds one to some. An OpenSSH server takes one after the other from what lies before
it, whenever that was sent (RFC 4253 7.3 and 10, RFC 4252 5.1), so all of it is sent at once. What it cannot take
because the login was refused, it answers with UNIMPLEMENTED. Other servers are spoken to as paramiko does.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

from paramiko.auth_handler import AuthHandler

from opsctl.remote import tcp
from opsctl.remote.lean_paramiko import paramiko

_SERVICE = "ssh-userauth"
_TAKES_ALL = re.compile(r"SSH-2\.0-OpenSSH_(?:[89]|\d\d)")  # and RSA keys by the first algorithm we would name


class Transport(paramiko.Transport):
    """Logs in with the first key, and opens the first session, without waiting for the answers before.

    `start_client` returns as soon as the server has proved its host key: `host_key` is to be judged then.

    Attributes:
        wants_session: whether a session is going to be opened after the login.
    """

    wants_session = False
    _early: Future[paramiko.Channel] | None = None
    _tried = False

    def __init__(self, sock: tcp.Watched, **options: Any) -> None:
        super().__init__(sock, **options)  # type: ignore[arg-type]  # it acts as a socket
        self._new_keys = threading.Event()

    def _activate_outbound(self) -> None:
        super()._activate_outbound()  # type: ignore[misc]
        if not self._takes_all:
            return
        with self.clear_to_send_lock:  # our new keys hold from here on; the server's only say how to read what comes
            self.clear_to_send.set()
        if self.completion_event is not None:
            self.completion_event.set()

    def auth_publickey(self, username: str, key: paramiko.PKey, event: threading.Event | None = None) -> list[str]:
        if not self._takes_all or event is not None:
            return super().auth_publickey(username, key, event)
        answered = threading.Event()
        self.auth_handler = handler = _WithoutWaiting(self)
        handler.auth_publickey(username, key, answered)
        if self.wants_session and not self._tried:
            self._early = _beside(lambda: super(Transport, self).open_session())
        self._tried = True
        try:
            left: list[str] = handler.wait_for_response(answered)
        finally:
            if not self.is_authenticated():
                self._early = None  # it came before the login, and is not going to be opened
        return left

    def open_session(
        self, window_size: int | None = None, max_packet_size: int | None = None, timeout: float | None = None
    ) -> paramiko.Channel:
        early, self._early = self._early, None
        if early:
            return early.result(timeout)
        return super().open_session(window_size, max_packet_size, timeout)

    def auth_none(self, username: str) -> list[str]:
        self._settle()
        return super().auth_none(username)

    def auth_password(self, username: str, password: str, *more: Any, **options: Any) -> list[str]:
        self._settle()
        return super().auth_password(username, password, *more, **options)

    def auth_interactive(self, username: str, *more: Any, **options: Any) -> list[str]:
        self._settle()
        return super().auth_interactive(username, *more, **options)

    @property
    def _takes_all(self) -> bool:
        return _TAKES_ALL.match(self.remote_version) is not None

    def _settle(self) -> None:
        """Wait until the server has sent its new keys."""
        keys = self._new_keys
        while self.is_active() and not keys.wait(0.1):
            pass

    def _parse_newkeys(self, message: paramiko.Message) -> None:
        super()._parse_newkeys(message)  # type: ignore[misc]
        self._new_keys.set()


class _WithoutWaiting(AuthHandler):
    """Takes the login service for granted: a server that refuses it ends the connection."""

    def _request_auth(self) -> None:
        super()._request_auth()  # type: ignore[misc]
        granted = paramiko.Message()
        granted.add_string(_SERVICE)
        granted.rewind()
        super()._parse_service_accept(granted)  # type: ignore[misc]

    def _parse_service_accept(self, message: paramiko.Message) -> None:
        cast(
            tcp.Watched, self.transport.sock
        ).acknowledge()  # until it has that, the server's Nagle algorithm holds back all the rest


def _beside(work: Callable[[], paramiko.Channel]) -> Future[paramiko.Channel]:
    """`work` done in a thread of its own."""
    done: Future[paramiko.Channel] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised to whoever wants the result
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done
