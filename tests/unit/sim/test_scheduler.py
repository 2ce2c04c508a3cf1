"""Rules of the scheduler: admission, budgets, prefixes, order."""

from __future__ import annotations

import pytest

from pytest_sglang_perf.sim.sequence import Sequence, State

from ._virtual import World, closed_loop


class Reply:
    def __init__(self):
        self.counts, self.finished = [], False

    def tokens(self, sequence, *, finished):
        self.counts.append(sequence.generated)
        self.finished = finished

    def failed(self, sequence, message, code):
        raise AssertionError((sequence, message, code))


def submit(world, prompt, output=10):
    reply = Reply()
    sequence = Sequence("r", tuple(prompt), output, {"type": "length", "length": output}, reply)
    world.scheduler.submit(sequence)
    return sequence, reply


@pytest.fixture
def world():
    return World(profile="tiny")


def test_one_request_takes_entry_prefill_and_steps(world):
    sequence, reply = submit(world, range(100), output=5)
    world.run()
    tiny = world.profile
    expected = tiny.entry_s + 100 / tiny.prefill_tokens_per_s + 4 * tiny.decode_graph_s(1)
    assert world.time == pytest.approx(expected)
    assert reply.counts == [1, 2, 3, 4, 5]
    assert reply.finished
    assert sequence.state is State.DONE
    assert world.scheduler.idle
    assert world.scheduler.used_tokens == 105  # held by the prefix cache alone


def test_a_long_prompt_is_prefilled_in_chunks(world):
    submit(world, range(5000), output=1)
    world.run()
    passes = [facts["tokens"] for kind, _, facts in world.batches if kind == "prefill"]
    assert passes == [2048, 2048, 904]


def test_no_more_run_than_are_allowed():
    world = World(profile="tiny", running=4)
    most = 0
    for index in range(20):
        submit(world, [index] * 10, output=8)
    while not world.scheduler.idle:
        world.run(world.time + 0.01)
        most = max(most, len(world.scheduler.running))
    assert most == 4


def test_waiting_requests_run_in_the_order_they_came():
    world = World("--disable-radix-cache", profile="tiny", running=1)
    replies = [submit(world, [index] * 10, output=3)[1] for index in range(5)]
    done = []
    while not world.scheduler.idle:
        world.run(world.time + 0.01)
        done += [index for index, reply in enumerate(replies) if reply.finished and index not in done]
    assert done == [0, 1, 2, 3, 4]


def test_prefixes_are_reused_unless_the_cache_is_off():
    shared = list(range(64))
    for flags, expected in (((), 64), (("--disable-radix-cache",), 0)):
        world = World(*flags, profile="tiny")
        submit(world, [*shared, 1000])
        world.run()
        second, _ = submit(world, [*shared, 2000])
        world.run()
        assert second.cached == expected
        again, _ = submit(world, [*shared, 2000])
        world.run()
        assert again.cached == (64 if expected else 0)  # all but the last token of a known prompt
        assert world.scheduler.flush()
        cold, _ = submit(world, [*shared, 2000])
        world.run()
        assert cold.cached == 0


def test_flushing_is_refused_while_a_request_runs(world):
    submit(world, range(10), output=1000)
    world.run(0.5)
    assert not world.scheduler.flush()


def test_a_full_kv_cache_takes_requests_back_and_loses_none():
    world = World("--disable-radix-cache", profile="tiny", tokens=2000)
    replies = [submit(world, [index] * 100, output=400)[1] for index in range(8)]
    world.run()
    assert any(kind == "retracted" for kind, _, _ in world.batches)
    assert all(reply.finished and reply.counts[-1] == 400 for reply in replies)
    assert all(reply.counts == sorted(reply.counts) for reply in replies)
    assert max(facts["usage"] for kind, _, facts in world.batches if kind == "decode") <= 1.0
    assert world.scheduler.used_tokens == 0


def test_a_late_client_gets_no_more_tokens_than_it_asked_for():
    world = World("--disable-radix-cache", profile="tiny", tokens=1500)
    late = closed_loop(world, 8, waves=4, prompt=100, output=200, lag_s=3.0, honest=True)
    assert any(kind == "retracted" for kind, _, _ in world.batches)
    assert sum(tokens for _, tokens in late.client.chunks) <= 200 * (len(late.client.done) + 8)
    assert len(late.client.done) >= 40


def test_a_full_prefix_cache_gives_way_to_requests():
    world = World(profile="tiny", tokens=3000)
    for index in range(20):
        submit(world, [index] * 300, output=50)
        world.run()
    assert world.scheduler.used_tokens <= 3000
    assert not any(kind == "retracted" for kind, _, _ in world.batches)


@pytest.mark.parametrize("when", [0.0, 0.055, 0.2])
def test_an_aborted_request_gets_nothing_more_and_frees_its_place(world, when):
    gone, reply = submit(world, range(50), output=500)
    other, kept = submit(world, range(50, 60), output=20)
    world.run(when)
    world.time = max(world.time, when)
    world.scheduler.abort(gone)
    before = list(reply.counts)
    world.run()
    assert reply.counts == before
    assert kept.finished
    assert other.generated == 20
    assert world.scheduler.idle


def test_nothing_is_sent_once_frozen(world):
    _, reply = submit(world, range(10), output=100)
    world.run(0.5)
    world.scheduler.freeze()
    before = list(reply.counts)
    world.run(100.0)
    assert reply.counts == before


def test_a_late_wake_up_does_not_slow_the_server_down():
    world = World(profile="tiny")
    _, reply = submit(world, range(10), output=200)
    world.time = 3.0  # the process was not scheduled for a while
    world.run()
    prompt = Sequence("r", tuple(range(10)), 1, {}, reply)
    expected = world.profile.entry_s + len(prompt.prompt) / world.profile.prefill_tokens_per_s
    expected += 199 * world.profile.decode_graph_s(1)
    assert world.time == pytest.approx(max(expected, 3.0), rel=0.01)


def test_slowing_down_on_purpose_lengthens_every_step(world):
    normal = closed_loop(world, 4, waves=3).tokens_per_s
    slow = World(profile="tiny")
    slow.scheduler.slow_down_s = 0.1
    assert closed_loop(slow, 4, waves=3).tokens_per_s < 0.4 * normal


def test_log_lines_come_every_forty_steps(world):
    submit(world, range(10), output=201)
    world.run()
    assert len([1 for kind, _, _ in world.batches if kind == "decode"]) == 5
