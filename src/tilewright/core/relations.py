"""Relations between dimensions in words of arithmetic: ``128 - n >= 0`` is ``n <= 128``.

In: expressions that are ``>= 0``, as graphs keep them. Out: rules as manifests spell them (``runtime.expressions``).
Not its business: who checks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.core.dims import is_known
from tilewright.core.expr import BinaryExpr, Dim, Expr, Sym, const_of, is_nonneg, substitute, terms_of, to_text


def rules_of(constraints: Iterable[Expr]) -> list[str]:
    """A rule for each expression that must be ``>= 0``, and one for two that are each other's negation.

    Of expressions that a number sets apart, as bounds of one size are, the least implies the others.
    """
    least: dict[Dim, Expr] = {}
    for e in constraints:
        rest = e - const_of(e)
        if rest not in least or const_of(e) < const_of(least[rest]):
            least[rest] = e
    left = dict.fromkeys(least.values())
    rules = []
    while left:
        e = next(iter(left))
        del left[e]
        opposite = e * -1
        is_equation = isinstance(opposite, Expr) and opposite in left
        if is_equation:
            del left[opposite]  # type: ignore[arg-type]
        rules.append(_compared(e, "==") if is_equation else rule_of(e))
    return rules


def is_broken(e: Expr, values: Mapping[Sym, Dim]) -> bool:
    """Do these values break the rule ``e >= 0``? So do those by which it divides by 0; False where it isn't decided."""
    try:
        found = substitute(e, values)
    except ZeroDivisionError:
        return True
    return is_known(found) and found < 0


def rule_of(e: Expr) -> str:
    """The rule ``e >= 0``."""
    choice = _choice(e)
    if choice is None:
        return _compared(e, ">=")
    op, a, b = choice
    if known := [x for x in (a, b) if is_known(x)]:  # it decides the choice, or leaves it to the other one
        other = b if known[0] is a else a
        if (op == "min") == (known[0] >= 0) and isinstance(other, Expr):
            return rule_of(other)
    if op == "max" and a + b == -2:  # as large as 1 on one side of zero or the other
        return _compared(a + 1, "!=")
    return f" {'or' if op == 'max' else 'and'} ".join(_part(x) for x in (a, b))


def _part(e: Dim) -> str:
    text = rule_of(e) if isinstance(e, Expr) else f"{e} >= 0"
    return f"({text})" if " or " in text or " and " in text else text


def _choice(e: Expr) -> tuple[str, Dim, Dim] | None:
    """``(op, a, b)`` for the larger or smaller of two expressions, a number added to both."""
    if len(terms_of(e)) != 1:
        return None
    (atom, coef), *_ = terms_of(e)
    if not isinstance(atom, BinaryExpr) or atom.op not in ("min", "max") or coef not in (1, -1):
        return None
    op = atom.op if coef == 1 else {"min": "max", "max": "min"}[atom.op]
    return op, atom.a * coef + const_of(e), atom.b * coef + const_of(e)


def _is_remainder(e: Dim) -> bool:
    """Is it a remainder? Those by a size are never below 0."""
    return isinstance(e, BinaryExpr) and e.op == "mod"


def _compared(e: Dim, relation: str) -> str:
    """``e relation 0`` with what is taken away on the other side; a lone number stands to the right."""
    more: Dim = max(const_of(e), 0) + sum((c * a for a, c in terms_of(e) if c > 0), 0)
    less: Dim = max(-const_of(e), 0) + sum((-c * a for a, c in terms_of(e) if c < 0), 0)
    if not is_known(more):
        return f"{to_text(more)} {relation} {to_text(less)}"
    if relation == ">=":
        relation = "==" if more == 0 and (is_nonneg(less) or _is_remainder(less)) else "<="
    return f"{to_text(less)} {relation} {to_text(more)}"
