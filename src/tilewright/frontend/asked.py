"""What sub-graphs ask of values, taken out of them: a graph alone has no way to fail, the model's call has.

In: graphs with checks, as branches or the body of a loop. Out: the same graphs with a result for each check, whether it
holds. Not its business: what is asked (``index_checks``, assertions of programs), and making the control flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright import ops
from tilewright.core.graph import Builder, Graph, Node
from tilewright.core.types import bool_


def add_check(checks: dict[str, Node], b: Builder, holds: Node, text: str) -> None:
    """Let ``checks`` fail with ``text`` where ``holds`` is false, or what was asked before by the same text is."""
    before = checks.get(text, holds)
    checks[text] = holds if before is holds else b(ops.logical_and, before, holds)


def with_conditions(branches: Sequence[Graph]) -> tuple[list[Graph], tuple[str, ...]]:
    """The branches with a result for each text that any of them asks; it is true in those that don't ask it."""
    texts = tuple(dict.fromkeys(text for branch in branches for text in branch.checks))
    return [_with_conditions(branch, texts) for branch in branches], texts


def _with_conditions(branch: Graph, texts: Sequence[str]) -> Graph:
    own = dict(zip(branch.checks, branch.conditions(), strict=True))
    plain = branch.unchecked()
    more = tuple(own.get(text) or branch.pool.const(True, bool_) for text in texts)
    names = tuple(f"holds_{k}" for k in range(len(texts)))
    return replace(plain, outputs=(*plain.outputs, *more), output_names=(*plain.output_names, *names))


def carrying(b: Builder, body: Graph, held: Sequence[Node], n_carried: int, *, is_ended: bool) -> Graph:
    """A loop's body that carries, behind its own ``n_carried`` values, whether each of its checks held so far.

    ``held`` are the inputs for that. With ``is_ended`` no trip follows one in which a check did not hold.
    """
    plain = body.unchecked()
    holds = [b(ops.logical_and, x, now) for x, now in zip(held, body.conditions(), strict=True)]
    again, *results = plain.outputs
    for condition in holds if is_ended else ():
        again = b(ops.logical_and, again, condition)
    first, names = 2 + n_carried, list(plain.output_names)
    names[1 + n_carried : 1 + n_carried] = [f"holds_{k}" for k in range(len(holds))]
    return replace(
        plain,
        inputs=(*plain.inputs[:first], *held, *plain.inputs[first:]),
        outputs=(again, *results[:n_carried], *holds, *results[n_carried:]),
        output_names=tuple(names),
    )
