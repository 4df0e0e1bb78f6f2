"""Every module's examples are what the documentation shows, so they must run: applied, found converged, undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl import modules
from opsctl.errors import UsageError
from opsctl.modules.contract import Action, Module
from tests.modules.conftest import Play

KEYWORDS = {"name", "when", "vars", "register", "notify", "supervise"}
TASKS = [
    pytest.param(name, task, id=f"{name}-{task['name']}")
    for name in modules.names()
    for task in yaml.safe_load(modules.get(name).examples)
]


def rendered(value: Any, play: Play) -> Any:
    match value:
        case str():
            return play.site.render(value, "example")
        case list():
            return [rendered(item, play) for item in value]
        case dict():
            return {key: rendered(item, play) for key, item in value.items()}
    return value


@pytest.mark.parametrize(("name", "task"), TASKS)
def test_example(name: str, task: dict[str, Any], play: Play, tmp_path: Path) -> None:
    module = modules.get(name)
    keys = [key for key in task if key not in KEYWORDS]
    assert keys == [name]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "stale.lock").touch()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "greeting.txt.j2").write_text("{{ greeting }}\n")
    known: dict[str, Any] = play.site.variables  # type: ignore[assignment]
    known.update(task.get("vars", {}), scratch=str(scratch))
    given = rendered(task[name], play)
    given = given if isinstance(given, dict) else {module.free_form: given}
    parsed = module.args.model_validate(given)
    if task.get("when") is False:  # needs what a test machine has not
        return
    if isinstance(module, Action):
        assert module.run(parsed, play.host, play.site, lambda text, done: None).failed is None
        return
    assert isinstance(module, Module)
    before = sorted(str(path) for path in scratch.rglob("*"))
    first = play.run(name, **given)
    if not play.steps:
        return
    assert first["changed"] is True
    if name != "shell":
        assert play.run(name, **given)["changed"] is False
        play.rollback()
        assert sorted(str(path) for path in scratch.rglob("*") if path.suffix != ".log") == before


def test_each_module_says_what_it_is() -> None:
    for name in modules.names():
        module = modules.get(name)
        assert module.name == name
        assert module.__doc__
        assert yaml.safe_load(module.examples)
        for field in module.args.model_fields.values():
            assert field.description or field.annotation


def test_an_unknown_module_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="there is no module 'templte'") as caught:
        modules.get("templte")
    assert caught.value.hint == "did you mean 'template'?"
