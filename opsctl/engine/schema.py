"""JSON Schema of playbooks, inventories and patches, made from the models, for editors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from opsctl import modules
from opsctl.engine.model import BlockKeys, Gate, IncludeKeys, Param, PlayKeys, TaskKeys
from opsctl.inventory.model import InventoryFile
from opsctl.patchfiles import PatchFile

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TEMPLATE = {"type": "string", "pattern": r"\{[{%#]"}
_REFS = "#/$defs/{model}"


class _Generate(GenerateJsonSchema):
    """Secrets are written as text (behind a tag); what has no form in JSON Schema is left open."""

    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> JsonSchemaValue:
        return {"type": "string"}

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}


def inventory() -> dict[str, Any]:
    """Schema of `inventory.yaml`."""
    schema = _of(InventoryFile)
    for definition in schema["$defs"].values():
        _each_property(definition, _loosened)
    # `name:` with nothing behind it is a host of which nothing more is said.
    for key in ("hosts", "groups"):
        named = schema["properties"][key]
        named["additionalProperties"] = {"anyOf": [named["additionalProperties"], {"type": "null"}]}
    return {"$schema": _DRAFT, "title": "opsctl inventory", **schema}


def playbook() -> dict[str, Any]:
    """Schema of a playbook: a play, a list of plays, or (for included files) a list of tasks."""
    definitions: dict[str, Any] = {}
    for model in (PlayKeys, TaskKeys, BlockKeys, IncludeKeys, Gate, Param):
        schema = _of(model)
        definitions |= schema.pop("$defs", {})
        definitions[model.__name__] = schema
    for name in modules.names():
        definitions[f"module {name}"] = _module(name, definitions)
    definitions["task"] = _task(definitions)
    for model in (BlockKeys, PlayKeys):
        for key in ("block", "rescue", "always", "tasks", "handlers"):
            if key in definitions[model.__name__]["properties"]:
                definitions[model.__name__]["properties"][key]["items"] = {"$ref": "#/$defs/node"}
    definitions["node"] = {
        "if": {"required": ["block"]}, "then": {"$ref": "#/$defs/BlockKeys"},
        "else": {
            "if": {"required": ["include"]}, "then": {"$ref": "#/$defs/IncludeKeys"}, "else": {"$ref": "#/$defs/task"},
        },
    }  # fmt: skip
    play = {"$ref": "#/$defs/PlayKeys"}
    return {
        "$schema": _DRAFT, "title": "opsctl playbook",
        "if": {"type": "array"},
        "then": {"items": {"if": {"required": ["hosts"]}, "then": play, "else": {"$ref": "#/$defs/node"}}},
        "else": play,
        "$defs": definitions,
    }  # fmt: skip


def patch() -> dict[str, Any]:
    """Schema of an end-state patch, a file of a project's `patches/`."""
    return {"$schema": _DRAFT, **_of(PatchFile), "title": "opsctl patch"}


def _of(model: type[BaseModel]) -> dict[str, Any]:
    schema: dict[str, Any] = model.model_json_schema(schema_generator=_Generate, ref_template=_REFS, by_alias=True)
    return schema


def _module(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    module = modules.get(name)
    schema = _of(module.args)
    for key, value in schema.pop("$defs", {}).items():
        definitions[f"{name} {key}"] = value
    schema = dict(_renamed(schema, name))
    for key in list(definitions):
        if key.startswith(f"{name} "):
            definitions[key] = _renamed(definitions[key], name)
            _each_property(definitions[key], _loosened)
    _each_property(schema, _loosened)
    about = (type(module).__doc__ or "").strip()
    schema["description"] = about
    schema.pop("title", None)
    if module.free_form:
        free = dict(schema["properties"][module.free_form])
        others = [key for key in schema.pop("required", []) if key != module.free_form]
        mapping = {**schema, **({"required": others} if others else {})}
        return {"description": about, "if": {"type": "object"}, "then": mapping, "else": free}
    return schema


def _renamed(value: Any, name: str) -> Any:
    """References to a module's own definitions, which carry its name here."""
    match value:
        case dict():
            return {
                k: v.replace("#/$defs/", f"#/$defs/{name} ") if k == "$ref" else _renamed(v, name)
                for k, v in value.items()
            }
        case list():
            return [_renamed(v, name) for v in value]
    return value


def _task(definitions: dict[str, Any]) -> dict[str, Any]:
    keys = definitions.pop("TaskKeys")
    properties = dict(keys["properties"])
    properties |= {name: {"$ref": f"#/$defs/module {name}"} for name in modules.names()}
    return {
        "type": "object", "description": "A task: one module and its arguments, and keys for when and how it runs.",
        "properties": properties, "additionalProperties": False,
        "oneOf": [{"required": [name]} for name in modules.names()],
    }  # fmt: skip


def _each_property(schema: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    for key, value in schema.get("properties", {}).items():
        schema["properties"][key] = change(value)
    for definition in schema.get("$defs", {}).values():
        _each_property(definition, change)


def _loosened(schema: dict[str, Any]) -> dict[str, Any]:
    """A property as it may be written: text may look like a number, and anything may be a template."""
    if schema.get("type") == "string" and "enum" not in schema and "pattern" not in schema:
        return {**schema, "type": ["string", "number", "boolean"]}
    if not schema or set(schema) <= {"title", "description", "default"}:
        return schema
    kept: dict[str, Any] = {k: schema[k] for k in ("description", "default") if k in schema}
    if "anyOf" in schema and any(s == {"type": "string"} for s in schema["anyOf"]):
        return {**schema, "anyOf": [*schema["anyOf"], {"type": ["number", "boolean"]}]}
    inner = {k: v for k, v in schema.items() if k not in ("description", "default", "title")}
    return {**kept, "anyOf": [inner, _TEMPLATE]}
