"""pytest hooks, fixtures and options: thin, and heavy imports only once a perf test is collected.

The rules live elsewhere: what a test declares in ``declaration``, what it may measure in ``session``, what its
claims make of it in ``outcome``, and how it is shown in ``report``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_sglang_perf import options as _options

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from pytest_sglang_perf.claims import Claim
    from pytest_sglang_perf.declaration import Declaration
    from pytest_sglang_perf.fixtures import ServerHandle, TestPerf
    from pytest_sglang_perf.report.run_file import RunRecord
    from pytest_sglang_perf.session import PerfSession

_SESSION: pytest.StashKey[PerfSession] = pytest.StashKey()
_RECORD: pytest.StashKey[RunRecord] = pytest.StashKey()
_SELECTION = pytest.StashKey[dict[str, list[str]]]()
_DECLARATION: pytest.StashKey[Declaration] = pytest.StashKey()
_CLAIMS: pytest.StashKey[list[Claim]] = pytest.StashKey()
_CURRENT = pytest.StashKey[pytest.Item]()

_MARK = (
    "sglang(server, control=None, workload=None, concurrency=None, expect=None, reason=None, crash=None, plan=None, "
    "boots=None, trials=None): declare what a performance test measures and what outcome is expected"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    _options.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    # Ours too: where no plugin for reruns is installed nobody has declared the mark that keeps them off our tests.
    config.addinivalue_line("markers", "flaky: rerun a failing test; switched off for tests of the sglang plugin")
    config.addinivalue_line("markers", _MARK)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Gather(config), "sglang_perf_gather")
    if config.pluginmanager.hasplugin("dsession") or config.pluginmanager.hasplugin("xdist"):
        from pytest_sglang_perf import _xdist

        config.pluginmanager.register(_xdist.Scheduling(), "sglang_perf_xdist")


# -- collection -----------------------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from pytest_sglang_perf.declaration import is_perf_test

    perf = [item for item in items if is_perf_test(item)]
    if not perf:
        return
    from pytest_sglang_perf import collection
    from pytest_sglang_perf.errors import SglangPerfError

    try:
        prepared = collection.prepare(config, items, perf)
    except SglangPerfError as error:
        raise pytest.UsageError(str(error)) from None
    for item, declaration in prepared.declarations.items():
        item.stash[_DECLARATION] = declaration
        # A rerun until green would turn noise into a pass; these tests, and only these, are never rerun.
        item.add_marker(pytest.mark.flaky(reruns=0, retries=0, max_runs=1), append=False)
    config.stash[_SELECTION] = prepared.reasons
    if prepared.deselected:
        config.hook.pytest_deselected(items=prepared.deselected)
    items[:] = prepared.order
    if prepared.session is not None:
        config.stash[_SESSION] = prepared.session
        if not hasattr(config, "workerinput"):
            from pytest_sglang_perf import _signals

            _signals.stop_in_order()


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    session = config.stash.get(_SESSION, None)
    if session is None or config.option.verbose < 0:
        return []
    simulated = " (simulated)" if session.simulated else ""
    lines = [f"sglang-perf: node {session.node_name}{simulated}: {session.plan_line()}"]
    lines.extend(f"  looks: {text}" for text in session.looks())
    lines.extend(f"  note: {note}" for note in session.suite.notes)
    for nodeid, reasons in config.stash.get(_SELECTION, {}).items():
        lines.extend(f"  selected {nodeid}: {reason}" for reason in reasons)
    return lines


# -- fixtures -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _sglang_session(request: pytest.FixtureRequest) -> Iterator[PerfSession]:
    """The node and everything that tests share on it."""
    session = request.config.stash[_SESSION]
    yield session
    session.finish()


@pytest.fixture
def sglang_server(request: pytest.FixtureRequest, _sglang_session: PerfSession) -> ServerHandle:
    """A live sglang server of the declared config: ``.url``, ``.log``, ``.facts``, ``.server_info()``.

    Booted once per config and session, and shared. Fails with phase, cause and advice when it does not come up.
    """
    from pytest_sglang_perf import fixtures

    return fixtures.serve(_sglang_session, request.node.stash[_DECLARATION])


@pytest.fixture
def sglang_perf(request: pytest.FixtureRequest, _sglang_session: PerfSession) -> TestPerf:
    """``measure()`` the declared server config, and claim something about the figures."""
    from pytest_sglang_perf import fixtures

    item: pytest.Item = request.node
    claims: list[Claim] = []
    item.stash[_CLAIMS] = claims
    return fixtures.TestPerf(_sglang_session, item.stash[_DECLARATION], claims)


# -- running one test -----------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    item.config.stash[_CURRENT] = item
    session = item.config.stash.get(_SESSION, None)
    if session is not None:
        session.start_test()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    declaration = item.stash.get(_DECLARATION, None)
    if declaration is not None:
        from pytest_sglang_perf.report import test_report

        claims: list[Claim] = item.stash.get(_CLAIMS, [])
        test_report.enrich(report, call, declaration, claims, item.config.stash[_SESSION])
    return report


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> list[str] | None:
    item = config.stash.get(_CURRENT, None)
    claims = item.stash.get(_CLAIMS, []) if item is not None else []
    if not claims or op not in {">=", "<=", ">", "<"}:
        return None
    from pytest_sglang_perf.claims import Quantity

    if isinstance(left, Quantity) or isinstance(right, Quantity):
        return claims[-1].explain()
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    category = getattr(report, "sglang_category", "")
    if not category or (report.when != "call" and report.passed):
        return None
    from pytest_sglang_perf.outcome import CATEGORIES

    letter, word, markup = CATEGORIES[category]
    return category, letter, (word, markup)


# -- the end --------------------------------------------------------------------------------------------------


def _record(config: pytest.Config) -> RunRecord:
    if _RECORD not in config.stash:
        from pytest_sglang_perf.report.run_file import RunRecord

        config.stash[_RECORD] = RunRecord()
    return config.stash[_RECORD]


class _Gather:
    """Takes the payloads off the reports, in the controller as in a run without xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        payload = getattr(report, "sglang_perf", None)
        if payload is not None:
            _record(self._config).add(payload)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    perf = config.stash.get(_SESSION, None)
    if perf is not None:
        perf.close()
        # An interrupted test has no report to bring what it measured, and that may be minutes of a GPU's time.
        if late := perf.take_measured():
            _record(config).add({"session": perf.summary(), "measured": late})
    if hasattr(config, "workerinput") or _RECORD not in config.stash:
        return
    from pytest_sglang_perf import many
    from pytest_sglang_perf.report import finish

    record, options = config.stash[_RECORD], _options.resolve(config)
    problems = finish.finish(record, options, baselines_folder(config))
    if options.inconclusive == "warn" and session.exitstatus == pytest.ExitCode.TESTS_FAILED:
        # What the correction does not uphold is inconclusive, and that is only warned of.
        record.excused = 0 < session.testsfailed == sum(map(many.excused, record.tests))
        if record.excused:
            session.exitstatus = pytest.ExitCode.OK
    if problems and session.exitstatus in {0, pytest.ExitCode.OK}:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def baselines_folder(config: pytest.Config) -> Path:
    """Where baselines are stored: ``baselines/`` in pytest's root folder."""
    return config.rootpath / "baselines"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if _RECORD in config.stash:
        from pytest_sglang_perf.report import terminal

        terminal.summary(terminalreporter, config.stash[_RECORD])
