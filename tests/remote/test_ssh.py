"""Reaching a host: keys, jump hosts, configuration, and a clear word for each way it can fail."""

from __future__ import annotations

import base64
import http.server
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import dsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from opsctl.errors import AuthFailed, HostKeyError, Unreachable
from opsctl.remote import hostkeys, ssh_config
from opsctl.remote.host import RemoteHost, connect
from opsctl.remote.spec import ConnectionSpec, Login, Timeouts
from opsctl.remote.trust import fetch
from opsctl.wire.protocol import Call
from tests.conftest import BOTH_LOGINS, MakeHost
from tests.proxy import Proxy, fewest
from tests.sshd import Sshd, free_port, keygen, proxy_command

LOGINS = pytest.mark.parametrize("login", ["pipelined", "plain"])
QUICK = Timeouts(connect=1, banner=1, auth=5, channel=5)


def works(host: object) -> bool:
    return host.call(Call("proc.run", {"argv": "echo ok"}), timeout=30).result["stdout"] == "ok\n"  # type: ignore[attr-defined,no-any-return]


@BOTH_LOGINS
def test_unknown_key_is_refused_and_trusting_it_helps(make_host: MakeHost, sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known"
    with pytest.raises(HostKeyError) as caught:
        make_host(known_hosts=(str(known),))
    assert sshd.host_key.fingerprint in caught.value.message
    assert caught.value.hint is not None
    assert "opsctl inventory trust box" in caught.value.hint

    found = fetch(sshd.spec(known_hosts=(str(known),)))
    assert found.key == sshd.host_key
    assert found.verdict is hostkeys.Verdict.UNKNOWN
    found.trust()
    assert works(make_host(known_hosts=(str(known),)))
    assert fetch(sshd.spec(known_hosts=(str(known),))).verdict is hostkeys.Verdict.KNOWN


@BOTH_LOGINS
def test_changed_key_is_refused_whatever_is_configured(make_host: MakeHost, sshd: Sshd, tmp_path: Path) -> None:
    keygen(tmp_path / "other")
    other = Path(f"{tmp_path}/other.pub").read_text()
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{sshd.port} {other}")
    config = tmp_path / "config"
    config.write_text("Host *\n  StrictHostKeyChecking no\n")
    with pytest.raises(HostKeyError, match="HAS CHANGED") as caught:
        make_host(known_hosts=(str(known),), ssh_config=str(config))
    assert sshd.host_key.fingerprint in caught.value.message
    fetch(sshd.spec(known_hosts=(str(known),))).replace()
    assert works(make_host(known_hosts=(str(known),)))


@BOTH_LOGINS
def test_pin_decides_alone(make_host: MakeHost, sshd: Sshd, tmp_path: Path) -> None:
    nothing = (str(tmp_path / "none"),)
    assert works(make_host(known_hosts=nothing, host_key=sshd.host_key.fingerprint))
    assert works(make_host(known_hosts=nothing, host_key=str(sshd.host_key)))
    for wrong in ("SHA256:" + "A" * 43, "SHA256:é"):
        with pytest.raises(HostKeyError, match="the pin in the inventory"):
            make_host(host_key=wrong)


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
def test_hashed_known_hosts(make_host: MakeHost, sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text(sshd.known_hosts.read_text())
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    assert "127.0.0.1" not in known.read_text()
    assert works(make_host(known_hosts=(str(known),)))


@BOTH_LOGINS
def test_login_that_is_refused_says_what_was_tried(make_host: MakeHost, tmp_path: Path) -> None:
    keygen(tmp_path / "stranger")
    keygen(tmp_path / "locked", "-N", "secret words")
    with pytest.raises(AuthFailed) as caught:
        make_host(keys=(str(tmp_path / "stranger"), str(tmp_path / "locked"), "/no/such/key"))
    message = caught.value.message
    assert f"key {tmp_path}/stranger" in message
    assert "encrypted: add it to the SSH agent" in message
    assert "/no/such/key (no such file)" in message
    assert "accepts publickey" in message


@BOTH_LOGINS
def test_a_key_on_hardware_or_of_an_old_kind_is_passed_over(make_host: MakeHost, sshd: Sshd, tmp_path: Path) -> None:
    public = ssh_string(b"sk-ssh-ed25519@openssh.com") + ssh_string(b"k" * 32) + ssh_string(b"ssh:")
    private = struct.pack(">II", 7, 7) + public + b"\1" + ssh_string(b"handle") + ssh_string(b"") + ssh_string(b"")
    private += bytes(range(1, 1 + -len(private) % 8))
    frame = b"openssh-key-v1\0" + ssh_string(b"none") * 2 + ssh_string(b"") + struct.pack(">I", 1)
    armour = base64.encodebytes(frame + ssh_string(public) + ssh_string(private)).decode()
    text = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{armour}-----END OPENSSH PRIVATE KEY-----\n"
    (tmp_path / "sk").write_text(text, encoding="ascii")
    old = dsa.generate_private_key(2048)
    pem = old.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (tmp_path / "dsa").write_bytes(pem)
    odd = (str(tmp_path / "sk"), str(tmp_path / "dsa"))
    assert works(make_host(keys=(*odd, str(sshd.key_file))))
    with pytest.raises(AuthFailed, match=r"sk .*only through the SSH agent.*dsa .*only through the SSH agent"):
        make_host(keys=odd)


def ssh_string(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


@BOTH_LOGINS
def test_much_on_standard_error_alone_does_not_hold_a_command_up(host: RemoteHost) -> None:
    ran = host.raw("head -c 6000000 /dev/zero >&2; echo done", timeout=30)  # three times the channel's window
    assert (ran.status, ran.stdout) == (0, b"done\n")


def test_of_endless_output_the_ends_are_kept(host: RemoteHost) -> None:
    ran = host.raw("echo first; head -c 5000000 /dev/zero; echo last", timeout=30)
    assert ran.stdout.startswith(b"first\n")
    assert ran.stdout.endswith(b"last\n")
    assert len(ran.stdout) < 2 << 20


@BOTH_LOGINS
def test_each_way_not_to_get_there_has_its_own_words(make_host: MakeHost, sshd: Sshd) -> None:
    with pytest.raises(Unreachable, match="could not be resolved"):
        make_host(address="no-such-host.invalid", host_key=str(sshd.host_key))
    with pytest.raises(Unreachable, match="refused the connection"):
        make_host(port=free_port(), attempts=1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(Unreachable, match="before keys were agreed"):
            make_host(port=silent.getsockname()[1], timeouts=QUICK, attempts=1)


@BOTH_LOGINS
def test_a_server_that_comes_up_late_is_waited_for(make_host: MakeHost, sshd: Sshd) -> None:
    """First refused at the door, as by MaxStartups: accepted and closed without a word."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        port = door.getsockname()[1]
        turned_away = threading.Event()

        def turn_away_then_let_in() -> None:
            door.accept()[0].close()
            turned_away.set()
            inside, _ = door.accept()
            onward = socket.create_connection(("127.0.0.1", sshd.port))
            for source, sink in ((inside, onward), (onward, inside)):
                threading.Thread(target=pump, args=(source, sink), daemon=True).start()

        threading.Thread(target=turn_away_then_let_in, daemon=True).start()
        assert works(make_host(port=port, host_key=str(sshd.host_key)))
        assert turned_away.is_set()


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
    except OSError:
        pass
    sink.close()


@LOGINS
def test_a_wrong_login_is_not_tried_again(
    sshd: Sshd, tmp_path: Path, slow_link: Callable[..., Proxy], login: Login
) -> None:
    proxy = slow_link()
    keygen(tmp_path / "stranger")
    spec = sshd.spec(port=proxy.port, host_key=str(sshd.host_key), keys=(str(tmp_path / "stranger"),), login=login)
    with pytest.raises(AuthFailed):
        connect(spec)
    assert proxy.connections == 1


@pytest.fixture
def config(sshd: Sshd, tmp_path: Path) -> Path:
    """An OpenSSH configuration with the server under an alias, as jump host and behind one, two and three of them."""
    path = tmp_path / "config"
    path.write_text(
        f"""
Host box first second third
  HostName 127.0.0.1
  Port {sshd.port}
  User {sshd.user}
  IdentityFile {sshd.key_file}
  IdentitiesOnly yes
  UserKnownHostsFile {sshd.known_hosts}
Host second
  ProxyJump first
Host third
  ProxyJump first,box
Host behind
  HostName 127.0.0.1
  Port {sshd.port}
  IdentityFile {sshd.key_file}
  UserKnownHostsFile {sshd.known_hosts}
  ProxyJump {sshd.user}@third
Match host odd exec "test 1 = 1"
  HostName 127.0.0.1
  Port {sshd.port}
  IdentityFile {sshd.key_file}
  UserKnownHostsFile {sshd.known_hosts}
"""
    )
    return path


@pytest.mark.skipif(not shutil.which("ssh"), reason="needs the OpenSSH client")
@LOGINS
@pytest.mark.parametrize(("alias", "hops"), [("box", 1), ("odd", 1), ("second", 2), ("third", 3), ("behind", 4)])
def test_openssh_configuration_is_honoured(config: Path, alias: str, hops: int, state: Path, login: Login) -> None:
    spec = ConnectionSpec(alias, ssh_config=str(config), state_dir=str(state), login=login)
    assert len(ssh_config.route(spec).hops) == hops
    with connect(spec) as host:
        assert works(host)


@LOGINS
def test_proxy_command(sshd: Sshd, tmp_path: Path, state: Path, login: Login) -> None:
    if not shutil.which("ssh"):
        pytest.skip("needs the OpenSSH client")
    config = tmp_path / "config"
    config.write_text(
        f"Host far\n  User {sshd.user}\n  IdentityFile {sshd.key_file}\n  HostKeyAlias [127.0.0.1]:{sshd.port}\n"
        f"  UserKnownHostsFile {sshd.known_hosts}\n  ProxyCommand {proxy_command(tmp_path, sshd.port)}\n"
    )
    with connect(ConnectionSpec("far", ssh_config=str(config), state_dir=str(state), login=login)) as host:
        assert works(host)


def test_what_is_not_honoured_of_the_configuration_is_told() -> None:
    told = ssh_config.unhonoured(
        {"stricthostkeychecking": ["no"], "gssapiauthentication": ["yes"], "revokedhostkeys": ["/etc/revoked"]}
    )
    assert len(told) == 2
    assert told[0].startswith("stricthostkeychecking no is not honoured")
    assert "revokedhostkeys /etc/revoked" in told[1]


@pytest.fixture
def web() -> Iterator[int]:
    class Echo(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@BOTH_LOGINS
@pytest.mark.parametrize("connection", ["ssh", "local"])
def test_http_reaches_the_host_s_loopback(make_host: MakeHost, web: int, connection: str) -> None:
    host = make_host(connection=connection)
    with host.http(web) as client:
        for size in (0, 10, 3_000_000):
            answer = client.post("/echo", content=b"x" * size)
            assert (answer.status_code, len(answer.content)) == (200, size)
    with (
        host.http(free_port()) as client,
        pytest.raises(httpx.ConnectError, match=r"port \d+ of the host takes no|refused"),
    ):
        client.get("/health")


@BOTH_LOGINS
def test_a_link_that_goes_silent_is_noticed(
    make_host: MakeHost, sshd: Sshd, slow_link: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = slow_link()
    host = make_host(port=proxy.port, host_key=str(sshd.host_key))
    assert works(host)
    [pending] = host.send([Call("proc.run", {"argv": "sleep 1000"})])
    proxy.freeze()
    monkeypatch.setattr("opsctl.remote.agent_client.PING_AFTER", 0.2)
    monkeypatch.setattr("opsctl.remote.agent_client.LOST_AFTER", 1.0)
    with pytest.raises(Unreachable, match="no sign of life"):
        pending.wait()


def test_an_agent_whose_controller_vanished_lets_go_of_its_lock(
    make_host: MakeHost, sshd: Sshd, slow_link: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word: the server's side of the connection stays open for hours."""
    monkeypatch.setattr("opsctl.remote.heartbeat.LEASE", 1.0)
    proxy = slow_link()
    host = make_host(port=proxy.port, host_key=str(sshd.host_key))
    host.call(Call("lock.take", {"holder": {"who": "ann"}}))
    proxy.freeze()
    monkeypatch.undo()
    make_host().call(Call("lock.take", {"holder": {"who": "bob"}, "wait": 30}))


def test_round_trips(make_host: MakeHost, sshd: Sshd, slow_link: Callable[..., Proxy]) -> None:
    """A batch of many calls is one round trip: what leaves together is answered together."""
    proxy = slow_link(gather=0.25)
    host = make_host(port=proxy.port, host_key=str(sshd.host_key))
    calls = [Call("proc.run", {"argv": "true"}) for _ in range(20)]
    host.batch(calls[:1])

    def turns() -> int:
        before = proxy.turns
        host.batch(calls)
        return proxy.turns - before

    assert fewest(turns, 1) <= 1  # none, if the client spoke last, to widen its window


@BOTH_LOGINS
def test_the_second_key_opens_where_the_first_is_refused(make_host: MakeHost, sshd: Sshd, tmp_path: Path) -> None:
    """The session that was asked for along with the refused key is asked for again."""
    keygen(tmp_path / "stranger")
    assert works(make_host(keys=(str(tmp_path / "stranger"), str(sshd.key_file))))


def test_connecting_and_the_first_call_wait_for_the_server_five_times(
    sshd: Sshd, state: Path, slow_link: Callable[..., Proxy]
) -> None:
    """For its introduction, its key, the login with the session, the command, and the answer."""

    def turns() -> int:
        proxy = slow_link(gather=0.25)
        with connect(sshd.spec(port=proxy.port, host_key=str(sshd.host_key), state_dir=str(state))) as host:
            assert works(host)
            return proxy.turns

    assert fewest(turns, 5) == 5


def test_a_plain_login_waits_for_each_answer(sshd: Sshd, state: Path, slow_link: Callable[..., Proxy]) -> None:
    """Nothing of the quick way is left in it: the login service, the login and the session are asked for in turn."""
    proxy = slow_link(gather=0.25)
    reached = sshd.spec(port=proxy.port, host_key=str(sshd.host_key), state_dir=str(state), login="plain")
    with connect(reached) as host:
        assert works(host)
    assert proxy.turns > 6
