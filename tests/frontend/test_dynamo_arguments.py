"""Arguments larger than their memory, beyond whose end PyTorch would read: refused, in a process apart.

Zeros that PyTorch keeps without memory are left to it.
"""

import subprocess
import sys

import pytest
import torch

from tilewright.integrations.torch_compile.capture import FallbackWarning

CALLS = """
import sys, warnings, torch, tilewright as tw
torch.set_num_threads(1)
warnings.simplefilter("ignore")

def cut(n, make=lambda: torch.ones(100, 2)):
    x = make()
    x.untyped_storage().resize_(n)
    return x

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(100, 2))

    def forward(self, x):
        return x * self.weight

def compiled(f=lambda x: x * 2 + 1, **options):
    return torch.compile(f, backend="tilewright", **options)

def refuses(f, *args, says):
    try:
        f(*args)
    except tw.InputError as e:
        assert says in str(e) and "no memory" in str(e), e
        assert "remedy" in str(e) or "->" in str(e), e
    else:
        raise AssertionError("not refused")

"""
CASES = {
    "first call": "refuses(compiled(), cut(0), says='argument x')",
    "later call": "c = compiled(); c(torch.ones(100, 2)); c(torch.ones(100, 2)); refuses(c, cut(0), says='argument x')",
    "too short": "refuses(compiled(), cut(16), says='argument x')",
    "symbolic sizes": "refuses(compiled(dynamic=True), cut(0), says='argument x')",
    "gradients": "refuses(compiled(), cut(0).requires_grad_(), says='argument x')",
    "complex": "refuses(compiled(), cut(16, lambda: torch.ones(9, dtype=torch.complex64)), says='argument x')",
    "strided": "refuses(compiled(), cut(128, lambda: torch.ones(64, 2).t()[:, ::2]), says='argument x')",
    "a call of PyTorch's": """
refuses(compiled(lambda x: torch.linalg.eigvals(x) + 1), cut(0, lambda: torch.ones(30, 30)), says='argument x')""",
    "a weight": """
net = Net()
net.weight.untyped_storage().resize_(16)
with torch.no_grad():
    refuses(compiled(net), torch.ones(100, 2), says='weight')""",
    "a written argument": "refuses(compiled(lambda x: x.add_(1)), cut(0), says='argument x')",
    "a compiled model": """
model = tw.compile(Net(), (torch.ones(100, 2),), cache=False)
for n in (0, 16):
    refuses(model, cut(n), says='x')
    refuses(model, cut(n, lambda: torch.ones(2, 100).t()), says='x')""",
    "cut after calls": """
model, captured = tw.compile(Net(), (torch.ones(100, 2),), cache=False), compiled()
for call in (model, captured):
    for _ in range(4):
        call(torch.ones(100, 2))
    for n in (0, 16, 796):
        refuses(call, cut(n), says='x')
    part, whole = torch.ones(300, 2)[100:200], torch.ones(300, 2)[100:200]
    part.untyped_storage().resize_(1592)
    whole.untyped_storage().resize_(1600)
    refuses(call, part, says='x')
    call(whole)""",
    "nothing to read": "assert compiled()(cut(0, lambda: torch.ones(0, 2))).shape == (0, 2)",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", range(3))
def test_arguments_larger_than_their_memory_are_refused(first: int) -> None:
    """Many in one process, because PyTorch takes seconds to start; it prints each case before it tries it."""
    cases = dict(list(CASES.items())[first::3])
    steps = [f"print({name!r}, flush=True)\ntorch._dynamo.reset()\n{text.strip()}" for name, text in cases.items()]
    program = CALLS + "\n".join(steps)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode} after {done.stdout.split()[-1:]}: {done.stderr}"
    assert done.stdout.splitlines() == list(cases)


def test_zeros_without_memory_are_left_to_pytorch() -> None:
    zeros = torch._efficientzerotensor((3,))
    compiled = torch.compile(lambda x: x.cos() + 1, backend="tilewright")
    with pytest.warns(FallbackWarning, match=r"argument x is a tensor of zeros without memory; pass x.clone\(\)"):
        assert torch.equal(compiled(zeros), torch.full((3,), 2.0))
    assert torch.equal(compiled(zeros.clone()), torch.full((3,), 2.0))
