from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.baselines import (
    FULL,
    BaselineFile,
    Measured,
    NodeClass,
    Update,
    describe_change,
    plan_update,
)

from .conftest import boot

NODE = NodeClass("sim-x", {"simulated": "x"})


def stored(count: int, **fields) -> BaselineFile:
    boots = tuple(boot(1, session=f"old{i}", **fields) for i in range(count))
    return BaselineFile("sbo", "sim-x", {"simulated": "x"}, {"short": {"8": boots, "1024": boots}})


def plan(existing: BaselineFile | None, *measured: Measured, moved: bool = False) -> Update:
    return plan_update(existing, measured, moved=moved, server="sbo", node_class=NODE)


def one(update: Update):
    (change,) = update.changes
    return change


NEW = Measured("short", 1024, (boot(1, session="new"),))


def test_the_first_recording() -> None:
    update = plan(None, NEW)
    assert one(update).kind == "first"
    assert update.writes
    assert update.after.workloads == {"short": {"1024": NEW.boots}}
    assert (update.after.server, update.after.node_class, update.after.node) == ("sbo", "sim-x", {"simulated": "x"})


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_boots_are_added_until_five_are_stored(count: int) -> None:
    update = plan(stored(count), NEW)
    assert one(update).kind == "added"
    assert one(update).why == f"1 boot added, now {count + 1} of 5"
    assert update.after.workloads["short"]["1024"] == stored(count).workloads["short"]["1024"] + NEW.boots
    assert update.after.workloads["short"]["8"] == stored(count).workloads["short"]["8"]  # not measured


def test_no_more_than_five_are_stored() -> None:
    update = plan(stored(3), Measured("short", 1024, tuple(boot(i, session="new") for i in range(1, 5))))
    assert [b.boot for b in update.after.workloads["short"]["1024"][3:]] == [1, 2]


NEEDED = replace(NEW, boots=tuple(boot(number, session="new") for number in (1, 2, 3)), asked=frozenset({1}))


def test_boots_that_an_undecided_claim_took_are_not_stored() -> None:
    aside = "(2 further, taken to decide a claim, left out)"
    first = plan(None, NEEDED)
    assert one(first).why == f"1 boot recorded {aside}"
    assert first.after.workloads["short"]["1024"] == NEEDED.boots[:1]
    added = plan(stored(2), NEEDED)
    assert one(added).why == f"1 boot added, now 3 of 5 {aside}"
    assert added.after.workloads["short"]["1024"][2:] == NEEDED.boots[:1]


def test_where_something_moved_all_boots_that_showed_it_are_stored() -> None:
    assert plan(stored(5), NEEDED, moved=True).after.workloads["short"]["1024"] == NEEDED.boots


def test_a_second_look_at_the_same_session_adds_nothing() -> None:
    update = plan(plan(None, NEEDED).after, NEEDED)
    assert one(update).kind == "kept"
    assert not update.writes


def test_full_and_unmoved_keeps_every_byte() -> None:
    before = stored(5)
    update = plan_update(before, [NEW], moved=False, server="sbo", node_class=NodeClass("sim-x", {"driver": "other"}))
    assert one(update).kind == "kept"
    assert not update.writes
    assert update.after.to_text() == before.to_text()


@pytest.mark.parametrize("count", [1, 5])
def test_moved_replaces_what_was_measured_and_nothing_else(count: int) -> None:
    update = plan(stored(count), NEW, moved=True)
    assert one(update).kind == "replaced"
    assert update.after.workloads["short"]["1024"] == NEW.boots
    assert len(update.after.workloads["short"]["8"]) == count


@pytest.mark.parametrize(
    ("fields", "what"), [({"config": "c0"}, "the server config"), ({"workload": "w0"}, "the workload")]
)
def test_boots_of_an_earlier_content_are_replaced_and_it_is_said(fields: dict, what: str) -> None:
    update = plan(stored(5, **fields), NEW)
    assert one(update).kind == "replaced"
    assert one(update).why == f"the stored boots belong to an earlier content of {what}: 1 boot recorded in their place"
    assert update.after.workloads["short"]["1024"] == NEW.boots
    assert len(update.after.workloads["short"]["8"]) == 5


@pytest.mark.parametrize("reason", ["the server crashed under load", "the trial is invalid: client lag"])
def test_problems_are_refused(reason: str) -> None:
    before = stored(2)
    update = plan(before, Measured("short", 1024, (), (reason,)))
    assert not update.writes
    assert update.after == before
    assert update.refused == (f"short at 1024: {reason}",)


def test_a_boot_with_wildly_differing_trials_is_refused_as_unstable() -> None:
    shaky = Measured("short", 1024, (boot(2, output_throughput=[1500, 700]),))
    update = plan(None, shaky)
    assert not update.writes
    assert update.after.workloads == {}
    assert "unstable: output_throughput was between 700 and 1500 in the trials of boot 2" in update.refused[0]
    noisy = Measured("short", 256, (boot(1, output_throughput=[9300, 13500]),))  # seen on a healthy H200
    assert plan(None, noisy).writes


def test_nothing_measured_is_refused() -> None:
    assert plan(None, Measured("short", 8, ())).refused == ("short at 8: no trial was completed",)


def test_a_refused_level_does_not_hold_up_the_others() -> None:
    update = plan(stored(1), Measured("short", 8, (), ("crashed",)), NEW)
    assert [change.kind for change in update.changes] == ["refused", "added"]
    assert len(update.after.workloads["short"]["8"]) == 1
    assert len(update.after.workloads["short"]["1024"]) == 2


def test_the_same_boot_is_never_stored_twice() -> None:
    once = plan(None, NEW).after
    again = plan(once, NEW)
    assert one(again).kind == "kept"
    assert again.after.to_text() == once.to_text()


def test_the_description_shows_what_changed() -> None:
    update = plan(
        stored(5, output_throughput=[1500, 1500], ttft_p50=[0.5]),
        Measured("short", 1024, (boot(1, session="new", output_throughput=[750, 750]),)),
        moved=True,
    )
    assert describe_change(update) == (
        "short at 1024: replaced: moved: 1 boot new in place of 5\n"
        "    output_throughput: 1500 -> 750 (-50.0 %)\n"
        "    ttft_p50: 0.5 before, absent now\n"
        "not measured, unchanged: short at 8"
    )


_MEASURED = st.builds(
    Measured,
    workload=st.sampled_from(["short", "long"]),
    level=st.sampled_from([1, 8, 1024]),
    boots=st.lists(
        st.builds(
            boot,
            st.integers(1, 3),
            session=st.sampled_from(["a", "b", "c"]),
            config=st.sampled_from(["c1", "c2"]),
            output_throughput=st.lists(st.floats(100, 150), min_size=1, max_size=3),
        ),
        max_size=6,
    ).map(lambda boots: tuple(b for b in boots if b.config == boots[0].config)),
    problems=st.sampled_from([(), ("crashed",)]),
)


@given(st.lists(st.tuples(st.lists(_MEASURED, max_size=3, unique_by=lambda m: (m.workload, m.level)), st.booleans())))
def test_the_rules_hold_over_any_sequence_of_sessions(sessions: list) -> None:
    file: BaselineFile | None = None
    for measured, moved in sessions:
        update = plan(file, *measured, moved=moved)
        touched = {(c.workload, c.level) for c in update.changes if c.kind in ("first", "added", "replaced")}
        before = file.workloads if file else {}
        for name, levels in update.after.workloads.items():
            for level, boots in levels.items():
                assert 0 < len(boots) <= FULL
                assert len({b.config for b in boots}) == 1
                assert ((name, level) in touched) == (before.get(name, {}).get(level) != boots)
        if not update.writes and file is not None:
            assert update.after.to_text() == file.to_text()
        if update.writes:
            file = BaselineFile.from_text(update.after.to_text(), file="f")
        describe_change(update)
