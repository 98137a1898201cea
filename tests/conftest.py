"""What holds for every test.

In: the command line. Out: the option ``--update-golden``; an environment in which the compiler verifies what it has
after every pass, and a rule that breaks is an error; where ``TILEWRIGHT_REQUIRE`` names the marker ``emulation``, tests
that have it fail instead of being skipped; a test that asks for more time has it from the watch over native code too;
the processor time of every test, the largest tests and files printed at the end, and a failure where one is over
``--cpu-limit``, or all together are over ``--cpu-budget``; of the cases of a test marked ``one_in(n)`` all but every
n-th marked ``slow``; random tests that no clock fails, and that draw half of their examples, and nothing out of our
sources, in quick runs; the fixture ``shared_kernels``; LLVM's work done once for a file; PyTorch's guards unmeasured; a
garbage collector that leaves libraries alone.
Not its business: what a test does with the option (``golden``).
"""

import faulthandler
import functools
import gc
import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key, get_timeout_config_value
from hypothesis import HealthCheck, is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers

from pace import Pace

# How long an example takes says more of the machine's other work than of the example: no profile judges it.
for profile in ("default", "ci"):
    settings.register_profile(
        profile, settings.get_profile(profile), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )

# PyTorch walks all young objects after every graph that it captures; what it leaves can wait for the next collection.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")  # noqa: TID251 - read when PyTorch is imported

REQUIRED = os.environ.get("TILEWRIGHT_REQUIRE", "").replace(",", " ").split()  # noqa: TID251 - of the tests alone


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")
    parser.addoption("--cpu-limit", type=float, help="fail a test that takes more seconds of processor time than this")
    budget = "fail where all tests take more seconds of processor time than this on the machine of tests/pace.py"
    parser.addoption("--cpu-budget", type=float, help=budget)
    parser.addoption("--cpu-times", help="write the processor time of every test to this file, as JSON")


FEW_EXAMPLES = 4
"""Of a random test that draws no more than these, a quick run draws all."""


def _fewer_examples(test: object) -> None:
    """Have a random test draw half of the examples that it asks for: those of a quick run are the same every time."""
    whole = getattr(test, "_hypothesis_internal_use_settings")  # noqa: B009 - Hypothesis shows it to plugins so
    if whole.max_examples > FEW_EXAMPLES:
        few = max(FEW_EXAMPLES, whole.max_examples // 2)
        setattr(test, "_hypothesis_internal_use_settings", settings(whole, max_examples=few))  # noqa: B010


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave every n-th case of a test marked ``one_in(n)`` to quick runs; by its place, so every run has the same."""
    if config.getoption("--hypothesis-profile", None) == "ci":
        tests = [item.obj for item in items if isinstance(item, pytest.Function)]
        for test in {id(t): t for t in tests if is_hypothesis_test(t)}.values():
            _fewer_examples(test)
    places = Counter[str]()
    for item in items:
        if marker := item.get_closest_marker("one_in"):
            test = item.nodeid.split("[")[0]
            if places[test] % marker.args[0]:
                item.add_marker("slow")
            places[test] += 1


@pytest.fixture(scope="session", autouse=True)
def _strict() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_STRICT", "compiler")
        yield


YOUNG = 2_000_000
"""So many more new objects than released ones start a collection, instead of Python's 700.

A model that is compiled and given back, as most tests do, starts none: a walk over what it holds would find nothing.
"""


LATE = ("sympy", "networkx", "scipy.stats", "jax", "sklearn.ensemble", "pandas")
"""Libraries that the tests, in the order in which they are collected, import after PyTorch; Dynamo the first."""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Import the tests without the garbage collector, out of whose sight they stay: nothing of them is given back.

    In a fresh environment no library has its bytecode yet, and of two workers that import all of them in one order each
    would make all of it. Of all tests' workers every other one begins at another end, and finds the rest made.
    """
    gc.disable()
    try:
        config = session.config
        number = int(getattr(config, "workerinput", {"workerid": "gw0"})["workerid"][2:])
        if number % 2 and config.args_source is config.ArgsSource.TESTPATHS and not sys.dont_write_bytecode:
            for name in LATE:
                if importlib.util.find_spec(name.split(".")[0]):
                    importlib.import_module(name)
        return (yield)
    finally:
        gc.freeze()
        config.stash[LOADED] = len(sys.modules)
        gc.set_threshold(YOUNG)
        gc.enable()


LOADED = pytest.StashKey[int]()  # how many modules there were when the garbage collector last set them aside
A_LIBRARY = 100
"""So many new modules are a library's."""
LEFT = 200_000
"""After so many new objects a collection between two files of tests pays: few of them are still in use then."""


@pytest.fixture(scope="module", autouse=True)
def _libraries_set_aside(request: pytest.FixtureRequest) -> None:
    """Take libraries out of the garbage collector's sight, which would walk their many objects again and again.

    That is before the file of tests that follows one which loaded a library or left much.
    What is in use at that moment is set aside too, and cycles among it are never given back; all else is collected as
    ever.
    """
    if len(sys.modules) - request.config.stash[LOADED] >= A_LIBRARY or gc.get_count()[0] >= LEFT:
        gc.collect()
        gc.freeze()
        request.config.stash[LOADED] = len(sys.modules)


@pytest.fixture(scope="module", autouse=True)
def _texts_compiled_once() -> Iterator[None]:
    """Let LLVM see each text once for the tests of a file, of which a quarter of its work would be the same again.

    An object is a function of the text, so this hides nothing of the compiler's own; ``shared_kernels`` does.
    """
    users = [sys.modules.get(f"tilewright.build.{name}") for name in ("kernels", "assemble")]
    with ExitStack() as stack:
        if all(users):
            compile_once = functools.cache(users[0].compile_text)
            for module in users:
                stack.enter_context(mock.patch.object(module, "compile_text", compile_once))
        yield


@pytest.fixture(scope="module", autouse=True)
def _guards_unmeasured() -> Iterator[None]:
    """Leave out what PyTorch does for its statistics: it measures its guards after emptying the processor's caches."""
    with pytest.MonkeyPatch.context() as patch:
        if guards := sys.modules.get("torch._dynamo.guards"):
            patch.setattr(guards, "profile_guard_manager", lambda *args: 0.0)
        yield


@pytest.fixture
def shared_kernels() -> Iterator[None]:
    """For a test that compiles what others compiled: a kernel that this process has made is not made again.

    Not for one that asks whether two compiles give the same code: they would by construction.
    """
    from fuzz_graphs import kernels_shared  # loads the compiler

    with kernels_shared():
        yield


CPU_SECONDS = pytest.StashKey[dict[str, float]]()  # of each test that ended, by its name
AT_PACE = pytest.StashKey[dict[str, float]]()  # the same, on the machine of ``pace``
PACE = pytest.StashKey[Pace]()
STARTED = pytest.StashKey[float]()
SHOWN = 12


POOLS = ("averagepool", "lppool", "maxpool")


def _leave_out_pools() -> None:
    """Have ONNX's suite of tests come without its pools, whose expected results are six of the seven seconds in which
    it loads; ``test-all`` has them, and quick tests of pools are elsewhere (``ops``, ``frontend``)."""
    for name in POOLS:
        whole = f"onnx.backend.test.case.node.{name}"
        sys.modules.setdefault(whole, ModuleType(whole))


def _draw_no_numbers_of_the_sources() -> None:
    """Have Hypothesis draw the same examples whatever other tests have loaded.

    It also draws numbers and texts that stand in the files of the modules loaded so far, all of which each worker would
    parse first.
    """
    providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config: pytest.Config) -> None:
    if "not slow" in config.getoption("-m"):
        _leave_out_pools()
    if config.getoption("--hypothesis-profile", None) == "ci":
        _draw_no_numbers_of_the_sources()
    config.stash[CPU_SECONDS], config.stash[AT_PACE], config.stash[PACE] = {}, {}, Pace()
    config.pluginmanager.register(_Ended(config.stash[CPU_SECONDS], config.stash[AT_PACE]))


class _Ended:
    """Collects what the reports say, which come from the workers' processes too."""

    def __init__(self, seconds: dict[str, float], at_pace: dict[str, float]) -> None:
        self.by_property = {"cpu_seconds": seconds, "cpu_seconds_at_pace": at_pace}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name in self.by_property:
                self.by_property[name][report.nodeid] = float(str(value))


def _cpu_seconds() -> float:
    """Processor time of this process, its threads, and the processes that it started and waited for."""
    return sum(os.times()[:4])


OVER = pytest.StashKey[str]()  # what is wrong with the processor time of all tests


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Judge the sum: no single test of thousands makes quick runs slow."""
    config, budget = session.config, session.config.getoption("--cpu-budget")
    if not budget or hasattr(config, "workerinput"):
        return
    spent = sum(config.stash[AT_PACE].values())
    if spent > budget:
        here = f"{spent:.0f} s of processor time on the machine of tests/pace.py; --cpu-budget is {budget:g}"
        config.stash[OVER] = f"{here}: make the work cheaper, or leave like cases to slow runs (one_in)"
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seconds = config.stash[CPU_SECONDS]
    if path := config.getoption("--cpu-times"):
        Path(path).write_text(json.dumps(seconds, indent=0))
    files = Counter[str]()
    for name, value in seconds.items():
        files[name.split("::")[0]] += value
    spent = f"{sum(seconds.values()):.0f} s of processor time in {len(seconds)} tests"
    at_pace = f"{sum(config.stash[AT_PACE].values()):.0f} on the machine of tests/pace.py"
    terminalreporter.section(f"{spent}, {at_pace}; the largest")
    for name, value in Counter(seconds).most_common(SHOWN) + files.most_common(SHOWN):
        terminalreporter.line(f"{value:7.1f} s  {name}")
    if over := config.stash.get(OVER, ""):
        terminalreporter.line(f"FAILED: {over}", red=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Move the end that ``faulthandler_timeout`` set a moment ago behind the one of the test's marker ``timeout``.

    That option is one for all tests, and would end a test of an hour, and its worker with it, after minutes.
    """
    item.stash[STARTED] = _cpu_seconds()
    marker, watch = item.get_closest_marker("timeout"), get_timeout_config_value(item.config)
    seconds = (marker.args or (marker.kwargs["timeout"],))[0] if marker else 0
    if seconds and 0 < watch < seconds + 60:  # Python's own end comes first, and leaves a report
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(seconds + 60, file=stderr, exit=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    required = [name for name in REQUIRED if item.get_closest_marker(name)]
    if report.skipped and required:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{why}; TILEWRIGHT_REQUIRE={required[0]} wants it run (docs/deploy.md names the tools)"
    if report.when == "teardown":
        _judge_time(item, report)
    return report


def _judge_time(item: pytest.Item, report: pytest.TestReport) -> None:
    """Note a test's processor time, its fixtures' included. A test marked ``slow`` may take what it needs."""
    seconds, limit = _cpu_seconds() - item.stash[STARTED], item.config.getoption("--cpu-limit")
    report.user_properties.append(("cpu_seconds", seconds))
    report.user_properties.append(("cpu_seconds_at_pace", seconds / item.config.stash[PACE].now()))
    if report.passed and limit and seconds > limit and not item.get_closest_marker("slow"):
        report.outcome = "failed"
        report.longrepr = f"{seconds:.1f} s of processor time; --cpu-limit is {limit:g}: do less, or mark it slow"
