"""What releases can do: the data against values from the wheels and from public reports, and how it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.sglang import releases
from opsctl.sglang.releases import Capture, Range, Version, generate
from opsctl.sglang.source import targets
from opsctl.sglang.source.symbols import find_class
from opsctl.sglang.source.tree import SourceTree
from tests.sglang_source.releases import wheel

V = Version.parse

# Class -> (release, whether it captures). Measured on servers of 0.5.9, 0.5.18 and 0.5.23, and sgl-project/sglang
# 18374, 19689 (KimiK25), 22230 (Qwen3-VL-MoE), 25408, 38307 (Qwen3.5-MoE); the rest read in the wheels by hand.
CAPTURES = {
    "LlamaForCausalLM": {"0.5.3": "yes", "0.5.9": "yes", "0.5.23": "yes"},
    "Qwen3MoeForCausalLM": {"0.5.9": "yes", "0.5.23": "yes"},
    "DeepseekV3ForCausalLM": {"0.5.4.post1": "no", "0.5.4.post2": "yes", "0.5.9": "yes", "0.5.23": "yes"},
    "Glm4MoeForCausalLM": {"0.5.4.post3": "no", "0.5.5": "yes", "0.5.9": "yes", "0.5.23": "yes"},
    "KimiK25ForConditionalGeneration": {"0.5.9": "patch", "0.5.10": "yes", "0.5.23": "yes"},
    "Qwen3VLForConditionalGeneration": {"0.5.11": "yes", "0.5.23": "yes"},
    "Qwen3VLMoeForConditionalGeneration": {"0.5.11": "yes", "0.5.23": "yes"},
    "Qwen3_5ForConditionalGeneration": {
        **{"0.5.9": "no", "0.5.10": "no", "0.5.11": "setter-without-effect", "0.5.18": "setter-without-effect"},
        **{"0.5.20": "setter-without-effect", "0.5.22": "yes", "0.5.23": "yes"},
    },
    "Qwen3_5MoeForConditionalGeneration": {
        **{"0.5.9": "no", "0.5.11": "setter-without-effect", "0.5.20": "setter-without-effect", "0.5.22": "yes"}
    },
    "Qwen3NextForCausalLM": {"0.5.8": "no", "0.5.9": "yes"},
    "BailingMoeV2ForCausalLM": {"0.5.8": "no", "0.5.9": "yes"},
    "Gemma4ForConditionalGeneration": {"0.5.11": "no", "0.5.12": "yes"},
    "DeepseekV4ForCausalLM": {"0.5.23": "no"},
    "MiniMaxM3SparseForConditionalGeneration": {"0.5.17": "no", "0.5.18": "yes"},
    "MiniMaxM3SparseForCausalLM": {"0.5.17": "setter-without-effect", "0.5.18": "yes"},
    "Qwen2MoeForCausalLM": {"0.5.9": "no", "0.5.23": "no"},  # a setter, but no get_embed_and_head
    "MindSporeForCausalLM": {"0.5.23": "unknown"},  # builds its model from a name in the config
}


@pytest.mark.parametrize(
    ("name", "version", "capture"), [(n, v, c) for n, found in CAPTURES.items() for v, c in found.items()]
)
def test_whether_a_class_captures(name: str, version: str, capture: str) -> None:
    assert releases.of(V(version)).targets[name].capture == capture


# Class, release, layers of the model, ids in the drafter's config -> layers whose input is recorded.
@pytest.mark.parametrize(
    ("name", "version", "n", "ids", "layers"),
    [
        ("LlamaForCausalLM", "0.5.9", 80, None, (2, 40, 77)),
        ("LlamaForCausalLM", "0.5.23", 80, (1, 39, 76), (2, 40, 77)),
        ("MiniMaxM3SparseForConditionalGeneration", "0.5.23", 62, None, (3, 32, 60)),
        ("MiniMaxM3SparseForConditionalGeneration", "0.5.23", 62, (1, 30, 58), (2, 31, 59)),
        ("DeepseekV3ForCausalLM", "0.5.12", 61, (2, 30, 58), (3, 31, 59)),
        ("DeepseekV3ForCausalLM", "0.5.13", 61, (2, 30, 58), (2, 30, 58)),
        ("KimiK25ForConditionalGeneration", "0.5.23", 61, (1, 29, 57), (2, 30, 58)),
        ("GptOssForCausalLM", "0.5.16", 36, (12, 24, 36), (13, 25, 37)),
        ("GptOssForCausalLM", "0.5.17", 36, (12, 24, 36), (12, 24, 36)),
        ("GptOssForCausalLM", "0.5.17", 36, (1, 17, 32), (2, 18, 33)),
    ],
)
def test_which_layers_are_recorded(
    name: str, version: str, n: int, ids: tuple[int, ...] | None, layers: tuple[int, ...]
) -> None:
    assert releases.of(V(version)).targets[name].layers(n, ids) == layers


# speculative/spec_info.py and the choices of the flag. NEXTN is EAGLE under another name everywhere.
_OLD = {"EAGLE": "EAGLE", "EAGLE3": "EAGLE3", "NEXTN": "EAGLE", "STANDALONE": "STANDALONE", "NGRAM": "NGRAM"}
_DFLASH = {**_OLD, "DFLASH": "DFLASH"}
_FROZEN = {**_DFLASH, "FROZEN_KV_MTP": "FROZEN_KV_MTP"}


@pytest.mark.parametrize(
    ("version", "algorithms"),
    [
        ("0.5.3", _OLD),
        ("0.5.10.post1", _OLD),
        ("0.5.11", _DFLASH),
        ("0.5.13", _FROZEN),
        ("0.5.18", {**_FROZEN, "DSPARK": "DSPARK"}),
        ("0.5.23", {**_FROZEN, "DSPARK": "DSPARK", "UNO": "UNO"}),
    ],
)
def test_the_algorithms_of_a_release(version: str, algorithms: dict[str, str]) -> None:
    assert releases.of(V(version)).algorithms == algorithms


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("LlamaForCausalLMEagle3", "0.4.6"),
        ("Eagle3DeepseekV2ForCausalLM", "0.5.12"),
        ("DFlashDraftModel", "0.5.11"),
        ("DeepseekV3ForCausalLMNextN", "0.4.6"),
        ("Qwen3_5ForCausalLMMTP", "0.5.9"),
    ],
)
def test_the_first_release_with_a_draft_class(name: str, first: str) -> None:
    having = [version for version in releases.known() if name in releases.of(version).draft_classes]
    assert having == [version for version in releases.known() if version >= V(first)]


@pytest.mark.parametrize(("version", "count"), [("0.5.9", 178), ("0.5.23", 290)])
def test_every_registered_class_is_there_once(version: str, count: int) -> None:
    release = releases.of(V(version))
    assert len(release.targets) + len(release.draft_classes) == count
    assert not set(release.targets) & release.draft_classes


def test_the_draft_model_inside_a_checkpoint() -> None:
    assert releases.of(V("0.5.9")).nextn["DeepseekV3ForCausalLM"] == "DeepseekV3ForCausalLMNextN"
    assert releases.of(V("0.5.9")).nextn["Glm4MoeForCausalLM"] == "Glm4MoeForCausalLMNextN"
    assert "LlamaForCausalLM" not in releases.of(V("0.5.23")).nextn


def test_a_version_that_was_not_read_has_no_facts_but_a_nearest_release() -> None:
    with pytest.raises(KeyError):
        releases.of(V("0.5.99"))
    assert releases.nearest(V("0.5.99")) == releases.known()[-1]
    assert releases.nearest(V("0.5.9.post7")) == V("0.5.9")
    assert releases.nearest(V("0.1.0")) == releases.known()[0]


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_the_data_is_what_the_generator_reads_in_the_wheel(version: str, tmp_path: Path) -> None:
    assert generate.main([str(wheel(version)), "--into", str(tmp_path)]) == 0
    data = Path(releases.__file__).parent / "data"
    assert releases.states(tmp_path)[V(version)] == releases.states(data)[V(version)]


# A model that records, in the fewest lines that have all of its parts.
_INNER = """
class Model:
    def __init__(self, config):
        self.layers = make_layers(config)
        self.layers_to_capture = []
    def forward(self, ids):
        aux = [h for i, h in enumerate(self.layers) if i in self.layers_to_capture]
        return ids, aux
class Deaf:
    def forward(self, ids):
        return ids
class Wrapped:
    def __init__(self, config, model_cls=Model):
        super().__init__()
        self.model = model_cls(config=config)
        self.capture_aux_hidden_states = False
    def get_embed_and_head(self):
        return self.model.embed_tokens.weight, self.lm_head.weight
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if not self.pp_group.is_last_rank:
            return
        self.capture_aux_hidden_states = True
        if layer_ids is None:
            n = self.config.num_hidden_layers
            self.model.layers_to_capture = [2, n // 2, n - 3]
        else:
            self.model.layers_to_capture = [val + 1 for val in layer_ids]
    def forward(self, ids):
        hidden_states = self.model(ids)
        aux_hidden_states = None
        if self.capture_aux_hidden_states:
            hidden_states, aux_hidden_states = hidden_states
        return self.logits_processor(ids, hidden_states, self.lm_head, aux_hidden_states)
"""
_DELEGATES = """
    def get_embed_and_head(self):
        return self.language_model.get_embed_and_head()
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.language_model.set_eagle3_layers_to_capture(layer_ids)
"""
_THROUGH = """
    def forward(self, ids):
        return routine(language_model=self.language_model)
"""
_SHAPES = {
    "its own": ("class T(Wrapped):\n    pass", "yes", ""),
    "handed over by super": (
        "class T(Wrapped):\n    def __init__(self, config):\n        super().__init__(config, model_cls=Deaf)",
        *("setter-without-effect", "its setter writes layers_to_capture on a Deaf, whose forward does not read it"),
    ),
    "handed over by default": (
        "class T(Wrapped):\n    def __init__(self, config, model_cls=Deaf):\n"
        "        super().__init__(config, model_cls)",
        *("setter-without-effect", "its setter writes layers_to_capture on a Deaf, whose forward does not read it"),
    ),
    "from a class attribute": (
        "class T(Wrapped):\n    body = Deaf\n    def __init__(self, config):\n        self.model = self.body(config)",
        *("setter-without-effect", "its setter writes layers_to_capture on a Deaf, whose forward does not read it"),
    ),
    "from a method": (
        "class T(Wrapped):\n    def __init__(self, config):\n        self.model = self.make(config)\n"
        "    def make(self, config):\n        return Model(config)",
        *("yes", ""),
    ),
    "what is captured is not taken": (
        "class T(Wrapped):\n    def forward(self, ids):\n        return self.model(ids)",
        *("setter-without-effect", "T.forward does not take what Model captured"),
    ),
    "delegates": (
        "class T:\n    def __init__(self, config):\n        self.language_model = Wrapped(config)\n"
        f"{_DELEGATES}{_THROUGH}",
        *("yes", ""),
    ),
    "delegates and goes round it": (
        f"class T:\n    def __init__(self, config):\n        self.language_model = Wrapped(config)\n{_DELEGATES}"
        "    def forward(self, ids):\n        return self.lm_head(self.decoder(ids))",
        "setter-without-effect",
        "T.forward does not go through that of Wrapped, which takes what was captured",
    ),
    "around one of two": (
        "class Other:\n    pass\nclass T:\n    def __init__(self, config):\n        if config.kind == 'a':\n"
        "            self.language_model = Wrapped(config)\n        else:\n"
        f"            self.language_model = Other(config)\n{_DELEGATES}{_THROUGH}",
        *("depends", ""),
    ),
    "raises": (
        "class T(Wrapped):\n    def set_eagle3_layers_to_capture(self, layer_ids=None):\n"
        "        raise NotImplementedError",
        *("no", "set_eagle3_layers_to_capture raises"),
    ),
    "lacks what the worker asks for": (
        "class T:\n    def set_eagle3_layers_to_capture(self, layer_ids=None):\n        pass",
        *("setter-without-effect", "its setter writes no layers"),
    ),
    "built from a name": (
        "class T:\n    def __init__(self, config):\n        self.language_model = registry[config.kind](config)\n"
        f"{_DELEGATES}{_THROUGH}",
        *("unknown", "self.language_model is built in a way that cannot be followed"),
    ),
}


@pytest.mark.parametrize("shape", _SHAPES)
def test_a_setter_is_followed_to_its_effect(shape: str) -> None:
    source, capture, why = _SHAPES[shape]
    path = "srt/models/m.py"
    tree = SourceTree("/t", "", {path: (_INNER + source).encode()}, {"T": (path,)})
    found = targets.read(tree, find_class(tree, path, "T")[-1])
    assert found.capture == capture
    assert found.why == why
    if found.capture is Capture.DEPENDS:
        assert found.around == ("Wrapped",)
    if found.capture in (Capture.YES, Capture.DEPENDS):
        assert found.layers(40) == (2, 20, 37)


def package(folder: Path, models: str) -> Path:
    """A package with as much in it as the generator needs."""
    files = {
        "srt/models/m.py": models,
        "srt/speculative/spec_info.py": "class SpeculativeAlgorithm(Enum):\n    EAGLE3 = auto()\n    NONE = auto()\n",
        "srt/server_args.py": "class ServerArgs:\n    model_path: str\n    def add(parser):\n"
        '        parser.add_argument("--model-path")\n',
    }
    for path, text in files.items():
        (folder / "sglang" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "sglang" / path).write_text(text)
    return folder


def test_a_new_release_is_one_file_that_tells_what_changed(tmp_path: Path) -> None:
    old = package(tmp_path / "old", f"{_INNER}\nclass A(Wrapped):\n    pass\nEntryClass = [A]\n")
    new = package(
        tmp_path / "new", f"{_INNER}\nclass A(Wrapped):\n    pass\nclass B(A):\n    pass\nEntryClass = [A, B]\n"
    )
    data = tmp_path / "data"
    data.mkdir()
    assert generate.main([f"9.9.0={old}", "--into", str(data)]) == 0
    before = (data / "9.9.0.json").read_bytes()
    assert generate.main([f"9.9.1={new}", "--into", str(data)]) == 0
    assert (data / "9.9.0.json").read_bytes() == before
    told = (data / "9.9.1.json").read_text()
    assert '"classes": ["B"]' in told
    assert "--model-path" not in told
    found = releases.states(data)
    assert sorted(found[V("9.9.1")]["targets"]) == ["A", "B"]
    assert found[V("9.9.1")]["flags"] == {"--model-path": True}


def test_a_release_between_two_known_ones_changes_the_file_after_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    a = package(tmp_path / "a", f"{_INNER}\nclass A(Wrapped):\n    pass\nEntryClass = A\n")
    b = package(tmp_path / "b", f"{_INNER}\nclass B(Wrapped):\n    pass\nEntryClass = B\n")
    assert generate.main([f"9.9.0={a}", f"9.9.2={a}", "--into", str(data)]) == 0
    assert generate.main([f"9.9.1={b}", "--into", str(data)]) == 0
    found = releases.states(data)
    assert [sorted(state["targets"]) for state in found.values()] == [["A"], ["B"], ["A"]]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("main", "'main' is not an SGLang version"),
        ("nowhere.whl", "no such wheel"),
        ("9.9.9=/nowhere", "there is no sglang/srt/models"),
    ],
)
def test_what_is_no_release_is_refused(
    word: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main([word, "--into", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("0.5.9", ["0.5.9"], ["0.5.8.post1", "0.5.10"]),
        ("0.5.10 to 0.5.10.post1", ["0.5.10", "0.5.10.post1"], ["0.5.9", "0.5.11"]),
        ("0.5.13 to 0.5.13.post1", ["0.5.13"], ["0.5.12.post1", "0.5.14"]),
    ],
)
def test_a_range_of_releases(text: str, inside: list[str], outside: list[str]) -> None:
    found = Range.told(text)
    assert found is not None
    assert str(found) == text
    assert all(V(version) in found for version in inside)
    assert not any(V(version) in found for version in outside)


@pytest.mark.parametrize("text", [None, "", "main", "0.5.11 to 0.5.10", "0.0.0.dev0", "0.5.9+g123"])
def test_what_is_no_range(text: str | None) -> None:
    assert Range.told(text) is None
