"""No template takes more memory or time than one may, and reading one evaluates nothing."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

import opsctl.engine.bounded
from opsctl.cli.main import run
from opsctl.engine.lint import lint
from opsctl.engine.scope import Scope
from opsctl.engine.templating import At, render, render_text
from opsctl.errors import UsageError
from opsctl.patterns import compiled
from opsctl.yaml_source import parse_yaml

AT = At(parse_yaml("a: 1", "vars.yaml"))

EXPLOSIVE = [
    "{{ [1]*100000000 }}",
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ 9**9**9**9**9 }}",
    "{{ 9**(9**9) }}",
    "{{ 2**99999 }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a'.ljust(1000000000) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000d}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10**9) }}",
    "{{ 'a' | indent(1000000000, true) }}",
    "{{ [1] | to_json(indent=10**9) }}",
    "{{ 5 | round(-1000000000) }}",
    "{{ [1] | batch(10**9, 0) | list }}",
    "{{ ['a'] | map('center', 10**9) | list }}",
    "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
    "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "{{ range(99999) | join('a' * 10**6) }}",
    "{{ ('a' * 10**6).join(['b'] * 99999) }}",
    "{{ 'a'.translate({97: 'b'}) }}",
    "{{ (1).to_bytes(10**9, 'big') }}",
    "{{ [[[[1] * 9999] * 9999] * 9999] * 9999 }}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x | length }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | string }}",
    "{% set n = namespace(x=2) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}",
    "{% for i in range(99999) %}{{ 'a' * 999999 }}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}.{% endfor %}{% endfor %}{% endfor %}",
    "{% set l = range(1000) | list %}{% for i in range(1000) %}{{ l | length }}{% endfor %}",
    "{% set t = 'ab ' * 1000 %}{% for i in range(300) %}{{ t | title | length }}{% endfor %}",
    "{% set t = 'ab ' * 1000 %}{% for i in range(300) %}{{ t.title().count('A') }}{% endfor %}",
    "{{ ('a' * 100) | regex_search('(a+)+b') }}",
    "{{ ('a' * 100) | regex_replace('(a|b+)*c', '') }}",
    "{{ ('a' * 100) is match('(?:\\w+\\s?)*$') }}",
    "{{ ('a' * 100) is search('((a{2,})?x*)+b') }}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(80) }}",
    "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "{{ " + "[" * 300 + "]" * 300 + " }}",
    "{{ " + "1+" * 3000 + "1 }}",
    "{% if 1 %}" * 200 + "{% endif %}" * 200,
    "{% for a in [1] %}" * 40 + "{% endfor %}" * 40,
    "{{ " + "not " * 3000 + "1 }}",
    "{{ " + "9" * 5000 + " }}",
    "{{ 1" + ".x" * 3000 + " }}",
    "{{ x" + "|upper" * 3000 + " }}",
]


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> object:
    """A process that may not grow by more than 1 GiB. Fewer steps than usual, to be quick."""
    monkeypatch.setattr(opsctl.engine.bounded, "STEPS", 5000)
    monkeypatch.setattr(opsctl.engine.bounded, "ELEMENTS", 1 << 17)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("text", EXPLOSIVE, ids=lambda text: text[:50])
def test_what_can_explode_is_an_error_with_a_place(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        render(text, Scope([]), AT)
    assert "vars.yaml" in str(caught.value.where)
    if "n.x }}" not in text and "[[[" not in text:  # as one value no text is made of them
        with pytest.raises(UsageError):
            render_text(text, Scope([]), "file.j2")
    # Lint looks at the text alone: it may find nothing wrong, but it ends.
    path = tmp_path / "play.yaml"
    path.write_text(f"hosts: all\nvars:\n  a: {text!r}\ntasks:\n  - debug: {text!r}\n  - debug: '{{{{ a }}}}'\n")
    for found in lint(path, None):
        assert found.place.line


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        (r"(\d+\.)+\d+", "1.10.2", True),
        (r"^([^=]+=[^;]*;)*$", "a=1;b=2;", True),
        (r"(?:[a-z]+/)+$", "a" * 100, False),
        (r"(ab?){2,}c", "ab" * 100, False),
        (r"(?:a++)*b", "a" * 100, False),
        (r"(a{8}){32}", "a" * 300, True),
        (r"(a+)?b", "a" * 100, False),
    ],
)
def test_a_pattern_may_repeat_what_ends_somewhere(pattern: str, text: str, fits: bool) -> None:
    assert (compiled(pattern).search(text) is not None) == fits


def test_ordinary_templates_stay_within_the_limits() -> None:
    for text, value in [
        ("{{ ('a' * 100000) | length }}", 100000),
        ("{% for i in range(3) %}{{ loop.last }}{% endfor %}", "FalseFalseTrue"),
        ("{{ 'a' ~ 1 ~ true }}", "a1True"),
        ("{{ 2**100 }}", 2**100),
        ("{{ '%05.1f' % 2 }}", "002.0"),
        ("{{ '{:>4}'.format(2) }}", "   2"),
        ("{{ ['a', 'b'] | join(', ') }}", "a, b"),
        ("{{ 123456789 | round }}", 123456789),
        ("{% for a in [[1, [2]]] recursive %}{{ loop.length }}{% endfor %}", 1),
        ("{{ range(50000) | sum }}", 1249975000),
    ]:
        assert render(text, Scope([]), AT) == value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("tasks: [{debug: '{{ nowhere }}'}]", 2),
        ("tasks: [{debug: '{{ 1 | regex_search(\"(a+)+\") }}'}]", 2),
        ("tasks: [{debug: x, when: \"inventory_hostname is match('(')\"}]", 2),
        ("tasks: [{line: {path: /x, line: a, match: '(a*)*b'}}]", 2),
        ("tasks: [{copy: {src: gone, dest: /x}}]", 2),
        ("tasks: [{debg: 1}]", 2),
        ("vars: {password: hunter2hunter2}\ntasks: [{debug: '{{ password }}'}]", 2),
        ("hosts: nobody\ntasks: []", 2),
        ("gates: [{measure: x, at_least: 1}]\ntasks: []", 2),
        ("vars: {a: 1}\ntasks: []", 3),
        ("tasks: []", 0),
        ("tasks: [{debug: '{{ [1]*100000000 }}'}]", 0),
    ],
)
def test_lint_ends_with_2_for_errors_and_3_for_less(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: {here: {connection: local}}\n")
    path = tmp_path / "play.yaml"
    path.write_text(text if text.startswith("hosts") else f"hosts: here\n{text}\n")
    assert run(["lint", str(path), "-i", str(tmp_path / "inventory.yaml")]) == code
