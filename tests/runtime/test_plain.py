"""Records of the runtime behave as those of ``dataclasses`` do."""

import copy
import dataclasses
from dataclasses import dataclass as standard
from dataclasses import field
from typing import Any

import pytest

from tilewright.runtime.plain import dataclass as quick


class Fields:
    a: int
    b: str = "b"
    c: Any = field(default=None, compare=False, repr=False)


def made(decorator: Any, **options: bool) -> Any:
    body = {"__annotations__": Fields.__annotations__, "b": "b", "c": field(default=None, compare=False, repr=False)}
    return decorator(**options)(type("Record", (), {"__module__": __name__, "__qualname__": "Record", **body}))


@quick(frozen=True, slots=True)
class Pair:
    left: int
    right: tuple[int, ...] = ()


@quick(frozen=True, slots=True)
class Empty:
    """No fields."""


@quick(frozen=True)
class Named:
    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return len(self.name)


@pytest.mark.parametrize("options", [{}, {"slots": True}, {"frozen": True}, {"frozen": True, "slots": True}])
def test_classes_behave_as_the_standard_ones(options: dict[str, bool]) -> None:
    ours, theirs = made(quick, **options), made(standard, **options)
    for cls in (ours, theirs):
        one, same, other = cls(1), cls(1, "b", c=[]), cls(2)
        assert one == same and one != other and one != (1, "b")
        assert repr(one) == "Record(a=1, b='b')"
        assert dataclasses.asdict(dataclasses.replace(one, a=3)) == {"a": 3, "b": "b", "c": None}
        with pytest.raises(TypeError):
            cls()
        if options.get("frozen"):
            assert hash(one) == hash(same) == hash(theirs(1))
            with pytest.raises(dataclasses.FrozenInstanceError):
                one.a = 2
            with pytest.raises(dataclasses.FrozenInstanceError):
                del one.a
        else:
            one.a = 2
            assert one == other
    assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]


def test_copies_are_equal() -> None:
    pair = Pair(1, (2, 3))
    assert copy.copy(pair) == copy.deepcopy(pair) == pair
    with pytest.raises(dataclasses.FrozenInstanceError):
        copy.copy(pair).left = 2
    assert not hasattr(pair, "__dict__") and Empty() == Empty() and hash(Empty()) == hash(())


def test_methods_that_a_class_writes_stay() -> None:
    assert repr(Named("x")) == "<x>" and Named("x") == 5 and hash(Named("x")) == 1


def test_arguments_that_do_not_fit_are_told() -> None:
    for given, named in (((1, "b", None, 4), {}), ((1,), {"d": 4}), ((1,), {"a": 4}), ((), {"b": "x"})):
        with pytest.raises(TypeError, match="Record"):
            made(quick, frozen=True)(*given, **named)


def test_records_that_change_have_no_hash_and_lists_of_their_own() -> None:
    @quick(slots=True)
    class Counts:
        seen: list[int] = field(default_factory=list)

    one, other = Counts(), Counts()
    one.seen.append(1)
    assert other.seen == [] and one != other
    with pytest.raises(TypeError):
        hash(one)
