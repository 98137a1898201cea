"""What holds of values by themselves: operations of the dtypes that have them, operands that fit each other.

In: a value, or the combiner of a fold. Out: the rule that it breaks, or None. Not its business: where a value stands
and what it reads (``tile.verify``), what an operation gives (``tile.interp``).

Constructors refuse most of this, but values are objects that a pass may have made in another way.
"""

from __future__ import annotations

from tilewright.core import types
from tilewright.core.compute import UNARY_OPS, Binary, Combiner, Const, Fma, Load, Param, Select, Unary, Value
from tilewright.core.compute import walk as walk_value
from tilewright.core.types import DType

OF_ALL_NUMBERS = {"neg", "abs", "isnan"}
OF_FLOATS_ALONE = {"larger", "atan2"}
OF_WHOLE_NUMBERS = {"and", "or", "xor", "shl", "shr"}
OF_BOOL = {"add", "mul", "and", "or", "xor", "min", "max", "eq", "ne", "lt", "le", "gt", "ge"}
OF_FLOATS = UNARY_OPS - OF_ALL_NUMBERS - {"not"}


def has_binary(op: str, dtype: DType) -> bool:
    """Is there such an operation of two elements of this dtype?"""
    if dtype is types.bool_:
        return op in OF_BOOL
    return op not in (OF_WHOLE_NUMBERS if dtype.is_float else OF_FLOATS_ALONE)


def has_unary(op: str, dtype: DType) -> bool:
    """Is there such an operation of one element of this dtype?"""
    if op == "not":
        return not dtype.is_float
    return dtype is not types.bool_ and (dtype.is_float or op not in OF_FLOATS)


def broken_rule(v: Value) -> str | None:
    """What is wrong with a value whose operands are all right."""
    match v:
        case Unary() if not has_unary(v.op, v.a.dtype):
            return f"there is no {v.op} of {v.a.dtype}"
        case Binary() if v.a.dtype is not v.b.dtype:
            return f"{v.op} of {v.a.dtype} and {v.b.dtype}"
        case Binary() if not has_binary(v.op, v.a.dtype):
            return f"there is no {v.op} of {v.a.dtype}"
        case Fma() if not v.a.dtype is v.b.dtype is v.c.dtype or v.a.dtype is types.bool_:
            return f"a multiply-add of {v.a.dtype}, {v.b.dtype} and {v.c.dtype}"
        case Select() if v.cond.dtype is not types.bool_ or v.a.dtype is not v.b.dtype:
            return f"a choice by {v.cond.dtype} between {v.a.dtype} and {v.b.dtype}"
        case Const() if v.dtype.is_integer and not v.dtype.min <= v.value <= v.dtype.max:
            return f"{v.value} is no {v.dtype}"
    return None


def broken_combiner(c: Combiner) -> str | None:
    """What is wrong with the combiner of a fold."""
    params = (*c.state, *c.value)
    if len({p.name for p in params}) != len(params):
        return "two placeholders of the combiner have one name"
    for result in c.result:
        for v in walk_value(result):
            if isinstance(v, Param) and v not in params:
                return f"the combiner reads %{v.name}, which is none of its placeholders"
            if isinstance(v, Load):
                return f"the combiner reads {v.buffer.name}, and only placeholders are given to it"
            if rule := broken_rule(v):
                return rule
    return None
