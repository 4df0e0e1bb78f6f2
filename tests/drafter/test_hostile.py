"""Damaged and malicious containers are refused, within bounds; nothing is executed, nothing odd is printed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.agent.checkpoint import torchfile
from opsctl.agent.checkpoint.reading import gather, has_nonfinite
from opsctl.agent.checkpoint.safetensors import Damaged, header_length, parse
from opsctl.cli.main import run
from opsctl.wire.protocol import Context
from tests.drafter import build
from tests.drafter.build import safetensors
from tests.drafter.conftest import Judge

F = '"dtype":"U8","shape":[4],"data_offsets":[0,4]'
DEEP = "[" * 100_000 + "]" * 100_000
MANY = ",".join(f'"t{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(5000))

# what is wrong: the file, the kind of damage
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "size"),
    "three bytes": (b"abc", "size"),
    "html": (b"<!DOCTYPE html><html>503</html>", "html"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "lfs-pointer"),
    "zip": (b"PK\x03\x04" + bytes(99), "not-safetensors"),
    "link text": (b"../../somewhere/else.json", "not-safetensors"),
    "length 2^62": (safetensors("{}", b"", 1 << 62), "header-length"),
    "length 101 MB": (safetensors("{}", b"", 101_000_000), "header-length"),
    "length past the end": (safetensors("{}", b"", 3), "header-length"),
    "length 0": (safetensors("", bytes(9)), "header-length"),
    "header over 1 MiB": (safetensors("{" + " " * (1 << 20) + "}", b""), "header-length"),
    "leading space": (safetensors(" {}", b""), "header-start"),
    "a list": (safetensors("[]", b""), "header-start"),
    "minus zero": (safetensors('{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', b""), "number"),
    "newlines for padding": (safetensors(f'{{"a":{{{F}}}}}\n\n', bytes(4)), "json"),
    "no json": (safetensors('{"a":}', b""), "json"),
    "not utf-8": (safetensors(b'{"\xff":1}', b""), "json"),
    "deep": (safetensors('{"a":' + DEEP + "}", b""), "json"),
    "truncated": (safetensors(f'{{"a":{{{F}}}}}', bytes(3)), "truncated"),
    "trailing": (safetensors(f'{{"a":{{{F}}}}}', bytes(5)), "trailing"),
    "overlap": (
        safetensors(f'{{"a":{{{F}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}}}', bytes(7)),
        "overlap",
    ),
    "gap": (safetensors(f'{{"a":{{{F}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":[5,9]}}}}', bytes(9)), "gap"),
    "gap at the start": (safetensors('{"b":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}}', bytes(5)), "gap"),
    "same key, same bytes": (safetensors(f'{{"a":{{{F}}},"a":{{{F}}}}}', bytes(4)), "duplicate"),
    "same key inside": (safetensors(f'{{"a":{{{F},"dtype":"I8"}}}}', bytes(4)), "duplicate"),
    "unknown dtype": (safetensors(f'{{"a":{{{F}}}}}'.replace("U8", "BF17"), bytes(4)), "dtype"),
    "dtype a list": (safetensors(f'{{"a":{{{F}}}}}'.replace('"U8"', "[]"), bytes(4)), "dtype"),
    "negative": (safetensors(f'{{"a":{{{F}}}}}'.replace("[4]", "[-4]"), bytes(4)), "shape"),
    "float dimension": (safetensors(f'{{"a":{{{F}}}}}'.replace("[4]", "[4.0]"), bytes(4)), "shape"),
    "bool dimension": (safetensors(f'{{"a":{{{F}}}}}'.replace("[4]", "[true,4]"), bytes(4)), "shape"),
    "rank 9": (safetensors(f'{{"a":{{{F}}}}}'.replace("[4]", "[4,1,1,1,1,1,1,1,1]"), bytes(4)), "shape"),
    "overflow": (safetensors(f'{{"a":{{{F}}}}}'.replace("[4]", f"[{1 << 33},{1 << 33}]"), bytes(4)), "size"),
    "million digits": (safetensors(f'{{"a":{{{F}}}}}'.replace("[4]", "[" + "9" * 900_000 + "]"), bytes(4)), "number"),
    "NaN": (safetensors(f'{{"a":{{{F}}}}}'.replace("[4]", "[NaN]"), bytes(4)), "number"),
    "size": (safetensors(f'{{"a":{{{F}}}}}'.replace("[4]", "[3]"), bytes(4)), "size"),
    "backwards": (safetensors(f'{{"a":{{{F}}}}}'.replace("[0,4]", "[4,0]"), bytes(4)), "offsets"),
    "three offsets": (safetensors(f'{{"a":{{{F}}}}}'.replace("[0,4]", "[0,2,4]"), bytes(4)), "offsets"),
    "a key missing": (safetensors('{"a":{"dtype":"U8","shape":[4]}}', bytes(4)), "entry"),
    "a key too many": (safetensors(f'{{"a":{{{F},"x":1}}}}', bytes(4)), "entry"),
    "metadata number": (safetensors('{"__metadata__":{"n":1}}', b""), "metadata"),
    "metadata list": (safetensors('{"__metadata__":[]}', b""), "metadata"),
    "5000 tensors": (safetensors("{" + MANY + "}", b""), "count"),
    "name out of the folder": (safetensors(f'{{"../../a":{{{F}}}}}', bytes(4)), "name"),
    "absolute name": (safetensors(f'{{"/etc/a":{{{F}}}}}', bytes(4)), "name"),
    "escape in a name": (safetensors('{"\\u001b[2J":{' + F + "}}", bytes(4)), "name"),
    "text direction in a name": (safetensors('{"\\u202e":{' + F + "}}", bytes(4)), "name"),
    "long name": (safetensors('{"' + "a" * 600 + '":{' + F + "}}", bytes(4)), "name"),
}


def parse_file(data: bytes) -> None:
    length = header_length(data[:64], len(data))
    parse(data[8 : 8 + length], len(data))


@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_refused(name: str, tmp_path: Path, judged: Judge) -> None:
    data, code = FILES[name]
    with pytest.raises(Damaged) as damaged:
        parse_file(data)
    assert damaged.value.code == code
    folder = build.specforge().write(tmp_path / "d")
    (folder / "model.safetensors").write_bytes(data)
    found = judged(folder)
    assert found.exit_code == 12
    assert dict(found.outcome) == {}
    assert found.findings[0].subject == "model.safetensors"


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_else(data: bytes) -> None:
    try:
        parse_file(data)
    except Damaged:
        return
    raise AssertionError("random bytes were taken for a checkpoint")


@settings(max_examples=300)
@given(st.data())
def test_changed_bytes_raise_nothing_else(data: st.DataObject) -> None:
    whole = bytearray(
        safetensors(f'{{"a":{{{F}}},"b":{{"dtype":"F16","shape":[2,1],"data_offsets":[4,8]}}}}', bytes(8))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Damaged):
        parse_file(bytes(whole))


def test_a_good_file_is_read() -> None:
    whole = safetensors(f'{{"__metadata__":{{"format":"pt"}},"a":{{{F}}}}}   ', bytes(4))
    length = header_length(whole[:64], len(whole))
    entries, metadata = parse(whole[8 : 8 + length], len(whole))
    assert [(e.name, e.shape, whole[e.start : e.end]) for e in entries] == [("a", (4,), bytes(4))]
    assert metadata == {"format": "pt"}


class _Payload:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, ("executed",)


def _torch(pkl: bytes, **members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", pkl)
        for name, data in members.items():
            archive.writestr(f"archive/data/{name}", data)
    return out.getvalue()


def _legacy(state: bytes) -> bytes:
    """As torch.save wrote it before it wrote archives: pickles one after the other. A tensor comes before `state`."""
    head = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}})
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x007X\x03\x00\x00\x00cpuK\x01NtQ"
    weight = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00K\x01\x85K\x01\x85\x89NtR"
    return b"".join(pickle.dumps(one, protocol=2) for one in head) + b"\x80\x02" + weight + state[2:]


@pytest.mark.parametrize("wrapped", [_torch, bytes, _legacy], ids=["archive", "bare", "legacy"])
def test_pickle_is_never_executed(
    wrapped: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: Judge
) -> None:
    monkeypatch.chdir(tmp_path)
    made = build.specforge()
    folder = made.write(tmp_path / "d")
    (folder / "model.safetensors").unlink()
    raw = pickle.dumps({"a": _Payload()}, protocol=2)
    (folder / "pytorch_model.bin").write_bytes(wrapped(raw))
    found = judged(folder)
    assert found.exit_code == 12
    assert "posix.mkdir" in found.findings[0].detail
    assert not (tmp_path / "executed").exists()


STATE = b"\x80\x02}X\x01\x00\x00\x00a"
PICKLES = {
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "global of torch": b"\x80\x02ctorch\nload\n.",
    "instance": b"\x80\x02(ios\nsystem\n.",
    "object": b"\x80\x02(cos\nsystem\no.",
    "build on nothing": b"\x80\x02b.",
    "no end": b"\x80\x02}",
    "underflow": b"\x80\x02tttt.",
    "memo of nothing": b"\x80\x02h\x05.",
    "not a dict": b"\x80\x02N.",
    "number in place of a tensor": STATE + b"K\x01s.",
    "text cut off": b"\x80\x02X\xff\xff\xff\x7f.",
    "unknown opcode": b"\x80\x02\xff.",
    "called dict": b"\x80\x02ccollections\nOrderedDict\nX\x01\x00\x00\x00aR.",
    # A tuple of itself twice, fifty times over: whoever shows it as text writes a million gigabytes.
    "storage key that doubles": STATE
    + b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n)"
    + b"q\x01h\x01\x86" * 50
    + b"X\x03\x00\x00\x00cpuK\x01tQs.",
    "negative size": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(NJ\xff\xff\xff\xff)))NtR.",
}


@pytest.mark.parametrize("name", PICKLES)
def test_odd_pickle_is_refused(name: str) -> None:
    with pytest.raises(Damaged):
        torchfile.walk(PICKLES[name])


@settings(max_examples=300)
@given(st.binary(max_size=120))
def test_random_pickle_raises_nothing_else(data: bytes) -> None:
    with contextlib.suppress(Damaged):
        torchfile.walk(b"\x80\x02" + data)


def test_pickle_ranges_are_the_stored_bytes(tmp_path: Path) -> None:
    tensors = build.specforge().tensors
    build.write_torch(tmp_path / "w.bin", tensors)
    whole = (tmp_path / "w.bin").read_bytes()
    with open(tmp_path / "w.bin", "rb") as file:
        entries = torchfile.entries(file)
    assert {e.name: whole[e.start : e.end] for e in entries} == {name: t.data for name, t in tensors.items()}


def test_tensors_of_one_storage_have_their_own_ranges(tmp_path: Path) -> None:
    """Two rows of one storage: the second starts at its offset."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nByteStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQ"
    ops = b"\x80\x02}("
    for name, offset in ((b"a", b"K\x00"), (b"b", b"K\x04")):
        ops += b"X\x01\x00\x00\x00" + name + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset
        ops += b"(K\x02t(K\x01t\x89ccollections\nOrderedDict\n)RtR"
    whole = _torch(ops + b"u.", **{"0": b"abcdef"})
    found = torchfile.entries(io.BytesIO(whole))
    assert {e.name: whole[e.start : e.end] for e in found} == {"a": b"ab", "b": b"ef"}


def test_compressed_pickle_is_refused_unread(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(50_000_000))
    tracemalloc.start()
    with open(tmp_path / "bomb.bin", "rb") as file, pytest.raises(Damaged):
        torchfile.entries(file)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_damaged_zip_directory_raises_nothing_else(tmp_path: Path) -> None:
    whole = bytearray(_torch(STATE, **{"0": bytes(64)}))
    for at in range(len(whole) - 120, len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0xFF
        with pytest.raises(Damaged):
            torchfile.entries(io.BytesIO(bytes(changed)))


def _flag(archive: bytearray) -> None:
    archive[archive.rfind(b"PK\x01\x02") + 8] |= 1


def _overlap(archive: bytearray) -> None:
    at = archive.rfind(b"PK\x01\x02") + 42
    archive[at : at + 4] = bytes(4)  # the storage is where the first member is


def _twice(archive: bytearray) -> None:
    at = archive.rfind(b"archive/data/1")
    archive[at : at + 14] = b"archive/data/0"


def _escape(archive: bytearray) -> None:
    at = archive.rfind(b"archive/byteorder")
    archive[at : at + 17] = b"../../a/byteorder"


@pytest.mark.parametrize("spoil", [_flag, _overlap, _twice, _escape])
def test_odd_members_of_an_archive_are_refused(spoil: Callable[[bytearray], None], tmp_path: Path) -> None:
    weights = build.specforge().tensors
    build.write_torch(tmp_path / "w.bin", {name: weights[name] for name in ("norm.weight", "d2t")})
    whole = bytearray((tmp_path / "w.bin").read_bytes())
    spoil(whole)
    with pytest.raises(Damaged):
        torchfile.entries(io.BytesIO(whole))


@pytest.mark.parametrize("inside", [True, False])
def test_links(inside: bool, tmp_path: Path, judged: Judge) -> None:
    folder = build.specforge().write(tmp_path / "d")
    real = (folder if inside else tmp_path) / "real.bytes"
    (folder / "model.safetensors").rename(real)
    (folder / "model.safetensors").symlink_to(real)
    found = judged(folder)
    assert found.exit_code == (0 if inside else 12)
    assert inside or "symbolic link" in found.findings[0].detail


def test_links_out_are_followed_when_asked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = build.specforge().write(tmp_path / "d")
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    assert run(["drafter", "check", str(folder), "--follow-links", "--json"]) == 0
    assert "symlink" in capfd.readouterr().out


def test_pipe_does_not_hang(tmp_path: Path, judged: Judge) -> None:
    folder = build.specforge().write(tmp_path / "d")
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert judged(folder).exit_code == 12


@pytest.mark.parametrize("where", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", "a\x1b[2J"])
def test_index_cannot_leave_the_folder(where: str, tmp_path: Path, judged: Judge) -> None:
    folder = build.specforge().write(tmp_path / "d")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"norm.weight": where}}))
    found = judged(folder)
    assert found.exit_code == 12
    assert found.findings[0].check == "index"


def test_nothing_odd_reaches_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    made = build.specforge()
    made.config |= {"architectures": [evil], "model_type": evil, "dtype": evil, "rope_scaling": {"rope_type": evil}}
    made.config |= {"quantization_config": {"quant_method": evil}, evil: 1, "speculators_config": {"verifier": {}}}
    folder = made.write(tmp_path / f"d{evil}")
    (folder / f"training_state{evil}.pt").write_bytes(b"x")
    (folder / f"link{evil}").symlink_to(f"/nowhere{evil}")
    for extra in ([], ["--json"]):
        run(["drafter", "check", str(folder), *extra])
        out, err = capfd.readouterr()
        assert out
        for text in (out, err):
            assert not any(ord(c) < 32 and c not in "\n\t" for c in text)
            assert "\u202e" not in text


def test_config_bombs_are_bounded(tmp_path: Path, judged: Judge) -> None:
    folder = build.specforge().write(tmp_path / "d")
    for text in (
        "[" * 500_000,
        '{"a":' * 200_000,
        '{"vocab_size":' + "9" * 500_000 + "}",
        " " * (2 << 20),
        '{"a":NaN}',
    ):
        (folder / "config.json").write_text(text)
        assert judged(folder).exit_code in (11, 12)
    (folder / "config.json").write_text("{" + ",".join(['"a":1'] * 150_000) + "}")
    assert judged(folder).exit_code == 11


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 10**9, "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(range(5000))}},
        {"hidden_size": "48", "num_attention_heads": 0, "draft_vocab_size": -1},
        {"head_dim": 10**15, "num_aux_hidden_states": 10**9, "fc_norm": True},
        {
            "eagle_config": [],
            "rope_scaling": "yarn",
            "rope_parameters": [1],
            "quantization_config": 3,
            "architectures": {},
        },
        {"target_hidden_size": "x", "rope_theta": "1e4", "max_position_embeddings": None, "torch_dtype": 7},
        {
            "rope_scaling": {"factor": 1e308},
            "quantization_config": {"weight_block_size": [0, "a"], "quant_method": "fp8"},
        },
    ],
)
def test_senseless_settings_give_an_answer(values: dict[str, object], judged: Judge) -> None:
    made = build.specforge()
    made.config |= values
    assert judged(made).exit_code in (10, 11)


SECTIONS = (
    "eagle_config", "rope_scaling", "rope_parameters", "quantization_config", "text_config", "speculators_config",
    "transformer_layer_config", "verifier", "quantization", "auto_map",
)  # fmt: skip
KEYS = sorted({
    *SECTIONS, *build.specforge().config, *build.speculators().config, *build.mla().config, *build.specforge().target,
    "dtype", "torch_dtype", "rope_theta", "rope_type", "type", "factor", "original_max_position_embeddings",
    "partial_rotary_factor", "layer_types", "head_dim", "hidden_act", "eos_token_id", "mlp_bias", "bias", "fc_norm",
    "num_aux_hidden_states", "target_hidden_size", "norm_before_fc", "norm_output", "quant_method", "quant_algo",
    "weight_block_size", "activation_scheme", "max_sequence_length", "eagle_aux_hidden_state_layer_ids",
    "use_aux_hidden_state", "AutoConfig", "architectures", "name_or_path",
})  # fmt: skip
# Beside any text and number: what the checks look for, so that they look further.
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**18), 10**18), st.floats(), st.text(max_size=8),
    st.sampled_from([0, 1, "yarn", "llama3", "longrope", "fp8", "modelopt", "NVFP4", "llama", "kimi_k2", "bfloat16"]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    make=st.sampled_from([build.specforge, build.mla, build.speculators]),
    where=st.sampled_from([None, None, *SECTIONS]),
    key=st.sampled_from(KEYS),
    value=VALUES,
)
def test_any_value_at_any_key_gives_an_answer(
    make: Callable[[], build.Drafter], where: str | None, key: str, value: object, judged: Judge
) -> None:
    """In the drafter's config, at the top or in a section, and in the target's."""
    made = make()
    for raw in (made.config, made.target):
        section = raw.setdefault(where, {}) if where else raw
        if isinstance(section, dict):
            section[key] = value
    assert json.dumps(judged(made).as_json())


def test_sparse_drafter_of_two_gigabytes_costs_half_a_megabyte(tmp_path: Path, judged: Judge) -> None:
    made = build.specforge()
    entries = build.header(made.tensors)
    size = sum(len(t.data) for t in made.tensors.values())
    entries["embed_tokens.weight"] = {
        "dtype": "BF16",
        "shape": [1 << 15, 1 << 15],
        "data_offsets": [size, size + (1 << 31)],
    }
    head = json.dumps(entries).encode()
    folder = made.write(tmp_path / "d")
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + b"".join(t.data for t in made.tensors.values()))
        file.truncate(8 + len(head) + size + (1 << 31))
    tracemalloc.start()
    reply = gather(Context(), str(folder))
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    assert len(json.dumps(reply.result)) + len(reply.body) < 500_000
    samples = reply.result["containers"][0]["samples"][-1]
    assert samples[0] == samples[1] == 8  # eight blocks read, all of them zeros


@pytest.mark.parametrize(
    ("dtype", "code", "values", "wild"),
    [
        ("F32", "f", [1.0, -3e38, 0.0], False),
        ("F32", "f", [1.0, float("nan")], True),
        ("F64", "d", [1e308, float("-inf")], True),
        ("F64", "d", [1e308, 0.5], False),
        ("F16", "e", [65504.0, -0.0], False),
        ("F16", "e", [float("inf"), 1.0], True),
        ("I64", "q", [-1, -1], False),
    ],
)
def test_nonfinite_values(dtype: str, code: str, values: list[float], wild: bool) -> None:
    assert has_nonfinite(struct.pack(f"<{len(values)}{code}", *values), dtype) is wild


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=40))
def test_nonfinite_bfloat16(words: list[int]) -> None:
    expected = any(word >> 7 & 0xFF == 0xFF for word in words)
    assert has_nonfinite(struct.pack(f"<{len(words)}H", *words), "BF16") is expected
