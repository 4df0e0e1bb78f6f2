"""A draft vocabulary table that cannot be right is an error that says what is wrong with it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from opsctl.sglang.patches.base import IN_NONE, About, Standing, Status, called_from, conflict, first_raise, identifiers
from opsctl.sglang.patches.drafter import CLASS, Loader, loader
from opsctl.sglang.source import splice
from opsctl.sglang.source.symbols import assignments, called_name
from opsctl.sglang.source.tree import DRAFTER, SourceTree

_CHECK = '''
def _check_d2t(self, d2t):
    """Raise unless d2t holds offsets: draft id i means target id i + d2t[i]."""
    vocab_size = self.config.vocab_size
    draft_vocab_size = getattr(self.config, "draft_vocab_size", None) or vocab_size
    if "int" not in str(d2t.dtype):
        raise ValueError(f"d2t is not integer: it has dtype {d2t.dtype}")
    if tuple(d2t.shape) != (draft_vocab_size,):
        raise ValueError(
            f"d2t has the wrong length: its shape is {tuple(d2t.shape)}, "
            f"draft_vocab_size is {draft_vocab_size}"
        )

    table = d2t.tolist()
    target_ids = [draft_id + offset for draft_id, offset in enumerate(table)]

    def are_ids(values):
        in_vocab = min(values) >= 0 and max(values) < vocab_size
        return in_vocab and len(set(values)) == len(values)

    # Tokens next to each other have the same offset, and every vocabulary of a real
    # size has such neighbours; absolute ids never repeat.
    increasing = all(low < high for low, high in zip(table, table[1:]))
    real = len(table) >= 1024
    if are_ids(table) and (not are_ids(target_ids) or (increasing and real)):
        raise ValueError(
            "d2t holds absolute target ids; it must hold offsets (target id - draft "
            "id): subtract arange(len(d2t)) from it"
        )
    for draft_id, target_id in enumerate(target_ids):
        if not 0 <= target_id < vocab_size:
            raise ValueError(
                f"d2t leaves the target vocabulary: draft id {draft_id} maps to "
                f"{target_id}, vocab_size is {vocab_size}"
            )
    repeated = len(target_ids) - len(set(target_ids))
    if repeated:
        raise ValueError(
            f"d2t repeats target ids: {repeated} of its {len(target_ids)} entries map "
            "to an id that is taken already"
        )
'''

# What a check of a d2t table has to look at, and the names that show that it does.
_COVERS = {
    "its type": {"dtype", "is_floating_point", "is_complex"},
    "its length": {"draft_vocab_size", "shape", "numel", "size", "len"},
    "the target vocabulary": {"vocab_size"},
    "repeated ids": {"set", "unique", "bincount", "diff", "Counter"},
}


class D2tGuard:
    name = "eagle3-d2t-guard"
    about = About(
        reason="a wrong d2t maps drafts to other tokens: garbage that is never accepted, or an index error",
        upstream=IN_NONE,
        precondition=f"{CLASS}.load_weights adds arange to d2t",
        end_state="load_weights raises for a d2t that is not integer, has the wrong length, leaves the target "
        "vocabulary, repeats ids or is an absolute table, and says which",
        proof="load_weights runs on stand-in tables: sound ones load, each broken kind raises its own message",
        oldest="0.4.9",
    )

    def look(self, tree: SourceTree) -> Standing:
        found = loader(tree)
        branch = _branch(found)
        code = called_from(tree, found.method, branch.body)
        raised = first_raise(code)
        if raised is None:
            return Standing(
                Status.NEEDED,
                DRAFTER,
                branch.lineno,
                "a guard: what d2t holds becomes token ids unchecked",
            )
        seen = identifiers(code)
        lacking = [what for what, names in _COVERS.items() if not names & seen]
        if lacking:
            raise conflict(DRAFTER, raised.lineno, f"d2t is checked already, but not {' nor '.join(lacking)}")
        return Standing(Status.APPLIED, DRAFTER, raised.lineno, "d2t is checked before it is used")

    def rewrite(self, tree: SourceTree) -> Mapping[str, bytes]:
        found = loader(tree)
        edits = [
            splice.before(found.module, _assignment(_branch(found)), f"self._check_d2t({found.tensor})"),
            splice.method_after(found.method.node, _CHECK),
        ]
        return {DRAFTER: splice.edited(tree.files[DRAFTER], edits)}


def _branch(found: Loader) -> ast.If:
    where = f"{CLASS}.load_weights"
    branch = found.branch("d2t")
    if branch is None:
        raise conflict(DRAFTER, found.loop.lineno, f'{where}: looked for `if "d2t" in {found.name}:`, found none')
    statement = _assignment(branch)
    if not any(called_name(n) == "arange" for n in ast.walk(statement)):
        raise conflict(
            DRAFTER,
            statement.lineno,
            f"{where}: looked for hot_token_id = d2t + arange, found `{ast.unparse(statement)}`",
        )
    return branch


def _assignment(branch: ast.If) -> ast.stmt:
    for statement in branch.body:
        wrapped = ast.FunctionDef(name="_", args=_NOTHING, body=[statement], decorator_list=[])
        if any(attribute == "hot_token_id" for attribute, _, _ in assignments(wrapped)):
            return statement
    raise conflict(DRAFTER, branch.lineno, "looked for self.hot_token_id = ... where d2t is read, found none")


_NOTHING = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
