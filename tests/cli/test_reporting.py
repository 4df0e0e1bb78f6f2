"""What each command that checks something tells a CI system, in every format, on inputs with known faults."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from opsctl.cli.main import run
from opsctl.cli.options import Output
from opsctl.cli.reporting import Reporting
from opsctl.cli.terminal import tell
from opsctl.drafter.findings import key_lines
from opsctl.engine.events import Note
from opsctl.errors import Exit, Place, RemoteError
from opsctl.findings import Finding
from opsctl.report import findings
from opsctl.report.ci import GitlabView, github, github_fence
from opsctl.report.plain import PlainView
from opsctl.secret import mask, remember
from tests.drafter import build
from tests.probe.probe_standin import Shape, serving

TREE_FILE = "tree/python/sglang/srt/models/x.py"
CLASH = """\
--- a/python/sglang/srt/models/x.py
+++ b/python/sglang/srt/models/x.py
@@ -1,2 +1,2 @@
 a = 1
-b = 7
+b = 3
"""


@dataclass(frozen=True)
class Asked:
    """A command line, and what is wrong with its input. place: of the annotation; in: its text."""

    words: tuple[str, ...]
    code: Exit
    rule: str
    text: str
    place: Place | None = None


def health(folder: Path) -> Asked:
    line = "[  100.000000] NVRM: Xid (PCI:0000:0a:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"
    (folder / "dmesg.txt").write_text(line)
    return Asked(("health", "--capture", "dmesg.txt"), Exit.UNFIT, "klog.xid", "GPU has fallen off the bus")


def drafter(folder: Path) -> Asked:
    made = build.specforge()
    made.config["draft_vocab_size"] = "many"
    config = made.write(folder / "draft") / "config.json"
    config.write_text(json.dumps(made.config, indent=2))
    words = ("drafter", "check", str(folder / "draft"), "--sglang", "0.5.12")
    line = 1 + [text.endswith('"many",') for text in config.read_text().splitlines()].index(True)
    return Asked(words, Exit.UNFIT, "draft-vocab-size", "no positive integer", Place("draft/config.json", line))


def patch(folder: Path) -> Asked:
    (folder / TREE_FILE).parent.mkdir(parents=True)
    (folder / TREE_FILE).write_text("a = 1\nb = 2\n")
    (folder / "own").mkdir()
    (folder / "own/clash.patch").write_text(CLASH)
    words = ("patch", "check", "--tree", "tree", "--own", "own")
    return Asked(words, Exit.CONFLICT, "clash", "does not apply", Place(TREE_FILE, 1))


def probe(folder: Path) -> Asked:
    (folder / "prompts.jsonl").write_text('{"id": "a", "input_ids": [40, 44]}\n')
    gate = ("--gate", "accept_length>=3.5", "--gate", "accept_length<=9")
    words = ("probe", "--prompts", "prompts.jsonl", "--max-tokens", "24", *gate)
    return Asked(words, Exit.GATE, "gate", "accept_length>=3.5: 2, fails")


@pytest.fixture(params=[health, drafter, patch, probe], ids=lambda make: make.__name__)
def asked(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("OPSCTL_OUTPUT", "OPSCTL_SUMMARY", "OPSCTL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    make: Callable[[Path], Asked] = request.param
    made = make(tmp_path)
    if make is not probe:
        yield made
        return
    with serving(Shape(cycles=(1,))) as url:
        yield replace(made, words=(*made.words, "--url", url))


def test_people_and_machines_read_what_they_did(asked: Asked, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*asked.words, "--json", "-o", "github"]) == asked.code
    assert isinstance(json.loads(capfd.readouterr().out), dict)
    assert run([*asked.words]) == asked.code
    assert "::" not in capfd.readouterr().out


def test_github(asked: Asked, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*asked.words, "-o", "github"]) == asked.code
    lines = capfd.readouterr().out.splitlines()
    blamed = [line for line in lines if line.startswith("::error ") and f"title={asked.rule}" in line]
    assert len(blamed) == 1
    assert asked.text in blamed[0]
    at = f"file={asked.place.file},line={asked.place.line}," if asked.place else "::error title="
    assert at in blamed[0]
    lines = [line for line in lines if not line.startswith("::add-mask::")]
    assert lines[0].startswith("::group::opsctl ")
    assert lines.index("::endgroup::") < lines.index(blamed[0])


def test_a_line_that_looks_like_a_command_is_none() -> None:
    assert github_fence("a\n b: ::error::c\n") == "a\n b: ::error::c\n"
    for text in ("a\n  ::error::b\n", "::add-mask::a", "seen: ##[error]b"):
        first, *inside, last = github_fence(text).splitlines()
        assert inside == text.splitlines()
        token = first.removeprefix("::stop-commands::")
        assert last == f"::{token}::"
        assert token not in text


@pytest.mark.parametrize("text", ["a\n::error::b", "a\n \t::stop-commands::b", "x ##[set-output]y", "##vso[task.x]y"])
def test_no_text_of_a_host_is_a_command_to_a_ci_system(capsys: pytest.CaptureFixture[str], text: str) -> None:
    tell(RemoteError(text, where="box", hint=text))
    PlainView(print)(Note(at=0.0, host="box", level="warning", message=text))
    GitlabView(print)(Note(at=0.0, host="box", level="warning", message="\x1b[0Ksection_start:1:x\r\x1b[0K"))
    said = "".join(capsys.readouterr())
    assert not re.search(r"^\s*::|##\[|##vso\[|\r|\x1b", said, re.M)
    assert "error" in said or "\\x" in said  # it is told all the same


def test_a_run_fences_the_output_of_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPSCTL_RECORDS", str(tmp_path / "records"))
    Path("inventory.yaml").write_text(f"hosts: {{box: {{connection: local, state_dir: {tmp_path / 'state'}}}}}\n")
    Path("p.yaml").write_text("- hosts: all\n  tasks:\n    - shell: 'printf \"::error::b\\n\"; exit 1'\n")
    assert run(["run", "p.yaml", "-o", "github"]) == Exit.FAILED
    lines = capfd.readouterr().out.splitlines()
    commands, token = [], None
    for line in lines:
        if token is None and line.startswith("::"):
            commands.append(line)
            token = line.removeprefix("::stop-commands::") if line.startswith("::stop-commands::") else None
        elif line == f"::{token}::":
            token = None
    assert next(line for line in commands if "::error" in line).startswith("::error file=p.yaml,line=3,")
    assert len([line for line in commands if line.startswith("::error")]) == 1


def test_history_says_that_a_run_was_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPSCTL_RECORDS", str(tmp_path / "records"))
    Path("inventory.yaml").write_text(f"hosts: {{box: {{connection: local, state_dir: {tmp_path / 'state'}}}}}\n")
    Path("p.yaml").write_text(f"- hosts: all\n  tasks:\n    - copy: {{dest: {tmp_path / 'made'}, content: x}}\n")
    assert run(["run", "p.yaml"]) == Exit.DONE
    assert run(["history"]) == Exit.DONE
    assert capfd.readouterr().out.endswith("on box: done\n")
    assert run(["rollback", "--yes"]) == Exit.DONE
    assert not (tmp_path / "made").exists()
    capfd.readouterr()
    assert run(["history"]) == Exit.DONE
    assert capfd.readouterr().out.endswith("on box: done, undone later\n")


def test_a_file_outside_of_the_working_folder_is_named_in_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    marked = github(Finding("t", "error", "m", Place("/usr/lib/opsctl/p.yaml", 3)))
    assert marked == "::error title=t::m%0Aat /usr/lib/opsctl/p.yaml:3"
    assert github(Finding("t", "error", "m", Place(str(tmp_path / "p.yaml"), 3))) == (
        "::error file=p.yaml,line=3,title=t::m"
    )


def test_gitlab(asked: Asked, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*asked.words, "--output", "gitlab"]) == asked.code
    assert capfd.readouterr().out
    entries = json.loads(Path("gl-code-quality-report.json").read_text())
    (blamed,) = [e for e in entries if e["check_name"] == asked.rule and e["severity"] == "major"]
    assert asked.text in blamed["description"]
    if asked.place:
        assert blamed["location"] == {"path": asked.place.file, "lines": {"begin": asked.place.line}}
    assert len({e["fingerprint"] for e in entries}) == len(entries)


def test_json_lines(asked: Asked, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*asked.words, "-o", "jsonl"]) == asked.code
    *found, ended = map(json.loads, capfd.readouterr().out.splitlines())
    assert (ended["event"], ended["exit_code"]) == ("ended", asked.code)
    (blamed,) = [f for f in found if f["name"] == asked.rule and f["status"] == "failed"]
    assert asked.text in blamed["message"]
    assert ended["counts"]["failed"] == sum(f["status"] == "failed" for f in found)


def test_files(asked: Asked, capfd: pytest.CaptureFixture[str]) -> None:
    Path("s.md").write_text("before\n")
    for _ in range(2):
        assert run([*asked.words, "--junit", "j.xml", "--summary", "s.md"]) == asked.code
    suite = ET.parse("j.xml").getroot().find("testsuite")
    assert suite is not None
    failed = [c for c in suite.findall("testcase") if c.find("failure") is not None]
    assert suite.get("failures") == str(len(failed))
    (message,) = [f.get("message") for c in failed if c.get("name", "").startswith(asked.rule) for f in c]
    assert asked.text in (message or "")
    before, *summaries = Path("s.md").read_text().split("## ")
    assert (before, len(summaries)) == ("before\n", 2)
    assert f"Exit code {int(asked.code)}." in summaries[0]
    assert asked.rule in summaries[0]
    if "probe" not in asked.words:  # which measures times
        assert summaries[0] == summaries[1]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("health", "--capture", "nowhere.txt"), Exit.USAGE, "nowhere.txt"),
        (("health", "--only", "gpu.tmp", "--capture", "x"), Exit.USAGE, "gpu.tmp"),
        (("drafter", "check", "nowhere"), Exit.USAGE, "no such folder"),
        (("patch", "check", "--tree", "nowhere"), Exit.USAGE, "nowhere"),
        (("patch", "sglang", "--status", "--inventory", "nowhere.yaml"), Exit.USAGE, "nowhere.yaml"),
        (("probe", "--url", "http://127.0.0.1:9"), Exit.UNREACHABLE, "no server answers"),
    ],
)
def test_errors_reach_the_ci(
    words: tuple[str, ...],
    code: Exit,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPSCTL_OUTPUT", "github")
    monkeypatch.setenv("OPSCTL_SUMMARY", "s.md")
    assert run([*words, "--junit", "j.xml"]) == code
    out, err = capfd.readouterr()
    assert out.startswith("::error ")
    assert said in out
    assert err.startswith("error: ")
    assert 'failures="1"' in Path("j.xml").read_text()
    assert f"Exit code {int(code)}." in Path("s.md").read_text()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is empty"),
        (b"one\ntwo\n", "nothing in its 2 lines is a server's"),
        (bytes(range(256)) * 40, "is no log of an SGLang server"),
        ("[2026-01-01 00:00:00] INFO: x\n".encode("utf-16"), "UTF-16 text"),
    ],
)
def test_what_is_no_server_log_is_not_summed_up(
    data: bytes, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.log").write_bytes(data)
    assert run(["logs", "summary", str(tmp_path / "x.log")]) == Exit.UNREADABLE
    out, err = capfd.readouterr()
    assert not out
    assert said in err


@pytest.mark.parametrize("words", [("health", "--only", "smi"), ("patch", "sglang", "--status")])
def test_a_lost_host_is_a_failure_beside_the_others(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    patch(tmp_path)
    sglang = f"sglang: {{checkout: {tmp_path / 'tree'}}}"
    Path("inventory.yaml").write_text(
        f"hosts:\n  box: {{connection: local, {sglang}}}\n  gone: {{address: 127.0.0.1, port: 9}}\n"
    )
    code = run([*words, "-o", "jsonl"])
    *found, ended = map(json.loads, capfd.readouterr().out.splitlines())
    assert code == ended["exit_code"] != Exit.DONE
    assert [f["status"] for f in found if f["group"] == "gone"] == ["failed"]
    assert "refused" in next(f["message"] for f in found if f["group"] == "gone")
    assert [f for f in found if f["group"] == "box"]


def test_a_report_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = health(tmp_path)
    assert run([*made.words, "--junit", "no/such/folder.xml"]) == Exit.USAGE
    out, err = capfd.readouterr()
    assert made.text in out  # the answer was found, and is told
    assert "no/such/folder.xml" in err


@pytest.mark.parametrize("output", ["human", "github", "gitlab", "jsonl"])
def test_secrets_are_masked_everywhere(
    output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    remember("s3cret-of-a-test")
    told = "seen: s3cret-of-a-test"
    found = Finding(
        "check", "error", told, Place("f", 1), told, where="host", subject="s3cret-of-a-test", evidence=told
    )
    reporting = Reporting("health", output, Path("j.xml"), Path("s.md"))
    reporting.tell(lambda: [found], Exit.UNFIT, lambda: print(mask(told) if output == "human" else told))
    out = capfd.readouterr().out
    assert ("::add-mask::s3cret-of-a-test\n" in out) == (output == "github")
    files = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "***" in files
    assert "s3cret-of-a-test" not in files + out.replace("::add-mask::s3cret-of-a-test", "")


def test_text_of_a_host_is_neither_markdown_nor_a_command() -> None:
    odd = Finding("check", "error", "a|b\n<script>\x1b[2J", remedy="`rm`", where="h\n::error::x")
    row = findings.markdown("opsctl x", [odd], 11).splitlines()[6]
    assert row.count(" | ") == 4
    assert "<script>" not in row
    assert "\x1b" not in row
    assert "\n" not in github(odd)


def test_lines_of_keys() -> None:
    text = '{\n "a": "b\\": c",\n "list": ["a", {"x":\n  1}],\n\n "y" : {"a": 2}\n}'
    assert key_lines(text) == {"a": 2, "list": 3, "x": 3, "y": 6}
    assert key_lines('no JSON: "') == {}
