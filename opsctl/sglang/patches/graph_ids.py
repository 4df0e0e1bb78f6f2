"""CUDA graphs capture the layers that the draft model's configuration names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from opsctl.sglang.patches.base import About, Standing, Status, conflict, needed_module, not_applicable, origin
from opsctl.sglang.releases.version import Version
from opsctl.sglang.source import splice
from opsctl.sglang.source.symbols import Module, called_name, dotted, find_class, mentioning, parse, walk
from opsctl.sglang.source.targets import CAPTURE
from opsctl.sglang.source.tree import CAPTURE_SETUP, GRAPH_RUNNER, GRAPH_RUNNER_NEW, MODEL_RUNNER, SourceTree

_WIDTH = 88  # SGLang's line length
_IDS = "eagle_aux_hidden_state_layer_ids"


class GraphLayerIds:
    name = "eagle3-graph-layer-ids"
    about = About(
        reason="graphs are captured with the default layers and replayed whatever the draft model was trained on",
        upstream="since 0.5.11 (sglang PR 22836): the layers are set once, before the graphs are captured",
        precondition=f"the model runner reads {_IDS} from the draft model's configuration",
        end_state=f"every {CAPTURE} on the way to graph capture is given the configured ids",
        proof="the calls run on stand-ins: the model receives the configured ids from each of them",
        oldest="0.5.1",
    )

    def look(self, tree: SourceTree) -> Standing:
        runner = needed_module(tree, MODEL_RUNNER)
        graph = parse(tree, GRAPH_RUNNER)
        graph_calls = _calls(graph) if graph else ()
        wrong = [c for c in graph_calls if not _is_bare(c) and _IDS not in _given(c)]
        if wrong:
            raise conflict(
                GRAPH_RUNNER,
                wrong[0].lineno,
                f"looked for the configured {_IDS}, found {_given(wrong[0])}",
            )
        bare = [(m, c) for m in (graph, runner) if m for c in _calls(m) if _is_bare(c)]
        if bare:
            module, call = bare[0]
            _plan(tree, runner)
            return Standing(
                Status.NEEDED,
                module.path,
                call.lineno,
                f"{CAPTURE}() is called without ids before the graphs are captured",
            )
        if graph_calls:
            return Standing(
                Status.APPLIED, GRAPH_RUNNER, graph_calls[0].lineno, "the graph runner passes the configured ids"
            )
        for path in (CAPTURE_SETUP, MODEL_RUNNER):
            module_found = parse(tree, path)
            for call in _calls(module_found) if module_found else []:
                return Standing(
                    origin(tree, Version(0, 5, 11)),
                    path,
                    call.lineno,
                    "the configured layers are set before graphs are captured, and only there",
                )
        if graph is None and parse(tree, GRAPH_RUNNER_NEW) is None:
            raise not_applicable("this tree has no CUDA graph runner")
        raise conflict(MODEL_RUNNER, 1, f"looked for a call of {CAPTURE} in the model runner, found none")

    def rewrite(self, tree: SourceTree) -> Mapping[str, bytes]:
        runner = needed_module(tree, MODEL_RUNNER)
        edits = {MODEL_RUNNER: _plan(tree, runner)}
        graph = parse(tree, GRAPH_RUNNER)
        if graph:
            owner = "self.model_runner"
            edits[GRAPH_RUNNER] = [_with_ids(c, f"{owner}.{_IDS}") for c in _calls(graph) if _is_bare(c)]
        return {path: splice.edited(tree.files[path], found) for path, found in edits.items() if found}


def _plan(tree: SourceTree, runner: Module) -> list[splice.Edit]:
    """The edits of the model runner. Raises Settled where the configured ids cannot be found."""
    edits = [_with_ids(c, f"self.{_IDS}") for c in _calls(runner) if _is_bare(c)]
    return edits if _keeps_ids(runner) else [*edits, *_read_first(tree, runner)]


def _read_first(tree: SourceTree, runner: Module) -> list[splice.Edit]:
    """Before 0.5.8 the ids are a local variable, read after the capture of graphs: keep them, and read them before."""
    found = find_class(tree, MODEL_RUNNER, "ModelRunner")
    initialize = found[0].own("initialize") if len(found) == 1 else None
    block = capture = None
    for statement in initialize.body if initialize else ():
        if any(isinstance(n, ast.Name) and n.id == _IDS for n in walk(statement)):
            block = block or statement
        if any(called_name(n) == "init_device_graphs" for n in walk(statement)):
            capture = capture or statement
    if block is None or capture is None:
        raise conflict(
            MODEL_RUNNER,
            initialize.lineno if initialize else 1,
            f"looked for where {_IDS} is read and init_device_graphs is called, found not both",
        )
    first, last = splice.first_line(runner, block), block.end_lineno or block.lineno
    moved = [runner.lines[n - 1].encode() for n in range(first, last + 1)]
    uses = [n for n in walk(block) if isinstance(n, ast.Name) and n.id == _IDS]
    for node in sorted(uses, key=lambda n: n.col_offset, reverse=True):
        line = moved[node.lineno - first]
        moved[node.lineno - first] = line[: node.col_offset] + b"self." + line[node.col_offset :]
    for call in (
        c for c in _calls(runner) if block.lineno <= c.lineno <= last and len(moved[c.lineno - first]) > _WIDTH
    ):
        head, _, tail = moved[call.lineno - first].partition(f"{CAPTURE}(".encode())
        outer = b" " * call.col_offset
        moved[call.lineno - first] = (
            head + f"{CAPTURE}(\n".encode() + outer + b"    " + tail[:-1] + b"\n" + outer + b")"
        )
    place = (splice.first_line(runner, capture), 0)
    code = f"{' ' * block.col_offset}self.{_IDS} = None\n" + b"\n".join(moved).decode() + "\n\n"
    gap = 1 if not runner.lines[last].strip() else 0  # the empty line after it goes along
    return [splice.Edit(place, place, code), splice.Edit((first, 0), (last + 1 + gap, 0), "")]


@lru_cache(maxsize=64)
def _keeps_ids(runner: Module) -> bool:
    """Whether the model runner has the configured ids as an attribute."""
    assigned = (n for n in mentioning(runner, _IDS) if isinstance(n, ast.Assign))
    return any(dotted(target) == f"self.{_IDS}" for n in assigned for target in n.targets)


@lru_cache(maxsize=64)  # the model runner is long, and looked through again and again
def _calls(module: Module) -> tuple[ast.Call, ...]:
    found = (n for n in mentioning(module, CAPTURE) if isinstance(n, ast.Call) and called_name(n) == CAPTURE)
    return tuple(sorted(found, key=lambda c: c.lineno))


def _is_bare(call: ast.Call) -> bool:
    return not call.args and not call.keywords


def _given(call: ast.Call) -> str:
    return " ".join(ast.unparse(a) for a in (*call.args, *(k.value for k in call.keywords)))


def _with_ids(call: ast.Call, ids: str) -> splice.Edit:
    """Put an argument between the call's parentheses."""
    line, column = call.end_lineno or call.lineno, (call.end_col_offset or 0) - 1
    if (call.end_col_offset or 0) + len(ids) <= _WIDTH:
        return splice.Edit((line, column), (line, column), ids)
    outer = " " * call.col_offset
    return splice.Edit((line, column), (line, column), f"\n{outer}    {ids}\n{outer}")
