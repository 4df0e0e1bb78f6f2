"""What a template gives: values keep their types, what is undefined or secret is told, nothing is parsed twice."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.engine.scope import Layer, Scope
from opsctl.engine.templating import At, evaluate, render, render_text
from opsctl.engine.unknown import Undecided, Unknown
from opsctl.errors import UsageError
from opsctl.secret import Secret, mask
from opsctl.yaml_source import parse_yaml

SOURCE = parse_yaml(
    'a: "{{ b }}/x"\nb: "{{ c }}"\nc: 1.10\nround: "{{ trip }}"\ntrip: "{{ round }}"\nlist: ["{{ n }}", 2]\nn: 8\n',
    "vars.yaml",
)
AT = At(SOURCE)
SCOPE = Scope(
    [
        Layer({"later": Unknown("later is not known"), "key": Secret("s3cret-key"), "from_host": "{{ c }}"}),
        Layer(SOURCE.value, AT),
    ]
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ n }}", 8),
        ("{{ n }} ", "8 "),
        ("{{ 5 }}", 5),
        ("{{ '08' }}", "08"),
        ("{{ true }}", True),
        ("{{ none }}", None),
        ("{{ list }}", [8, 2]),
        ("{{ {'a': n} }}", {"a": 8}),
        ("{{ a }}", "1.10/x"),
        ("v{{ c }}", "v1.10"),
        ("{{ '213235788261.371115' }}", "213235788261.371115"),
        ("{{ from_host }}", "{{ c }}"),
        ("{% if n > 1 %}5{% endif %}", "5"),
        ("{{ false and later.x }}", False),
        ("{{ nothing | default('d') }}", "d"),
        ("{{ '/a/b.txt' | basename }}", "b.txt"),
        ("{{ 'a b' | quote }}", "'a b'"),
        ("plain", "plain"),
    ],
)
def test_values(text: str, value: Any) -> None:
    found = render(text, SCOPE, AT)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ nn }}", ["'nn'", "n"]),
        ("{{ round }}", ["through itself"]),
        ("{{ a.b.c }}", ["no attribute"]),
        ("{{ ().__class__.__mro__ }}", ["not allowed"]),
        ("{{ 1 / 0 }}", ["division"]),
        ("{{ ", ["template error"]),
        ("{{ 'Bearer ' ~ key }}", ["secret"]),
        ("{{ key | upper }}", ["secret"]),
        ("{{ n is failed }}", ["registered"]),
        ("{{ range(99999999) | list }}", ["Range"]),
    ],
)
def test_mistakes(text: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        render(text, SCOPE, AT)
    assert "vars.yaml" in str(caught.value.where)
    for word in words:
        assert word in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    "text", ["{{ later }}", "{{ later.x }}", "x {{ later }}", "{{ later == 1 }}", "{{ later | length }}"]
)
def test_what_depends_on_the_unknown_is_undecided(text: str) -> None:
    with pytest.raises(Undecided):
        render(text, SCOPE, AT)


def test_secrets_stay_secret_whole_and_in_text() -> None:
    whole, inside = render("{{ key }}", SCOPE, AT), render("Bearer {{ key }}", SCOPE, AT)
    assert (str(whole), str(inside)) == ("***", "***")
    assert inside.reveal() == "Bearer s3cret-key"
    # A file's content has it in clear, and every text that leaves the process is masked from then on.
    assert mask(render_text("key={{ key }}\n", SCOPE, "f.j2")) == "key=***\n"


def test_a_mistake_in_a_template_file_has_its_line() -> None:
    with pytest.raises(UsageError) as caught:
        render_text("one\n{{ c }}\n{{ missing }}\n", SCOPE, "file.j2")
    assert str(caught.value.where) == "file.j2:3"


def test_expressions() -> None:
    assert evaluate("n + 1", SCOPE, AT) == 9
    assert evaluate("{{ n + 1 }}", SCOPE, AT) == 9
