"""The cells, one function a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import special

from pytest_sglang_perf.verdict import SequentialPlan, at_least

from .attainable import best_deviation
from .draws import OTHER_LEVELS, Truth, draw, other_levels
from .ours import accused, below, learn, sequential
from .peers import RULES
from .report import Report, percent, rate

MARGIN = 0.05
EDGE = float(np.log1p(-MARGIN))


def seeded(*parts: object) -> np.random.Generator:
    """The same draws for a cell, whatever ran before it."""
    return np.random.default_rng([ord(character) for character in repr(parts)])


def plan(looks: tuple[int, ...], reference: int = 5) -> SequentialPlan:
    return SequentialPlan(looks, reference=reference)


def one_look(truth: Truth, draws: int, *, pooled: bool, salt: str = "one") -> tuple[float, float, float]:
    """At a true change of exactly the margin: false `violated`, false `holds`, coverage of the 90 % interval."""
    rng = seeded(salt, truth, pooled)
    truth = replace(truth, change=-MARGIN)
    sample = draw(rng, truth, draws)
    learned = learn(other_levels(rng, truth, draws)) if pooled else None
    (chance,) = below(sample, (EDGE,), learned)
    return rate(accused(chance, 0.05, sample)), rate(chance <= 0.05), rate((chance > 0.05) & (chance < 0.95))


def looked(
    truth: Truth, looks: tuple[int, ...], draws: int, margin: float = MARGIN, *, pooled: bool = True, alike: bool = True
) -> tuple[float, float, float]:
    """Holds, violated, and mean boots used, of a plan with these looks."""
    rng = seeded("looks", truth, looks, margin, pooled)
    truth = replace(truth, candidate=looks[-1])
    sample = draw(rng, truth, draws)
    others = other_levels(rng, truth, draws) if pooled else None
    answer, used = sequential(sample, looks, plan(looks, truth.reference).levels, margin, others, alike=alike)
    return rate(answer == 1), rate(answer == -1), float(np.mean(used))


def plain_pooled_t(truth: Truth, looks: tuple[int, ...], draws: int, margin: float = MARGIN) -> tuple[float, float]:
    """The textbook rule: pooled t on boots, the error split evenly over the looks, sessions ignored."""
    rng = seeded("looks", truth, looks, margin, True)
    sample = draw(rng, replace(truth, candidate=looks[-1]), draws)
    answer = np.zeros(draws, dtype=int)
    for n in looks:
        y, side = sample.first(n).y, sample.first(n).side
        new, old = y[:, side], y[:, ~side]
        df = y.shape[1] - 2
        s2 = (new.var(axis=1) * new.shape[1] + old.var(axis=1) * old.shape[1]) / df
        t = (new.mean(axis=1) - old.mean(axis=1) - np.log1p(-margin)) / np.sqrt(s2 * (1 / n + 1 / old.shape[1]))
        limit = special.stdtrit(df, 1 - 0.05 / len(looks))
        answer = np.where(answer == 0, np.where(t >= limit, 1, np.where(t <= -limit, -1, 0)), answer)
    return rate(answer == 1), rate(answer == -1)


def false_alarms_one_look(report: Report, draws: int, *, quick: bool) -> None:
    report.say(
        "", "## False alarms without drift, one look", "",
        "True change exactly the margin (5 %), 5 stored boots, 4 trials a boot, no sessions recorded. Each field:"
        " false `violated` / false `holds` / coverage of the 90 % interval, in % of draws.",
    )  # fmt: skip
    boots = (1, 3) if quick else (1, 2, 3, 5, 8)
    errors: list[float] = []
    worst = {"normal": 0.0, "other": 0.0, "low": 1.0, "high": 0.0, "high_calm": 0.0}
    widest = Truth(), False
    for pooled in (False, True):
        rows = []
        cells = [("normal", sb, sw) for sb in (0.005, 0.02, 0.05) for sw in (0.005, 0.05, 0.15)]
        cells += [("heavy", 0.02, 0.01), ("bimodal", 0.02, 0.01)]
        for shape, sb, sw in cells[::3] if quick else cells:
            row = [shape, percent(sb), percent(sw)]
            for n in boots:
                truth = Truth(boot_sd=sb, trial_sd=sw, candidate=n, sessions=0, shape=shape)
                wrong, missed, cover = one_look(truth, draws, pooled=pooled)
                row.append(f"{percent(wrong)} / {percent(missed)} / {percent(cover)}")
                key = "normal" if shape == "normal" else "other"
                worst[key] = max(worst[key], wrong)
                if shape == "normal":
                    errors.append(wrong)
                    worst["low"] = min(worst["low"], cover)
                    if cover > worst["high"]:
                        worst["high"], widest = cover, (truth, pooled)
                    if sw <= 2.5 * sb:
                        worst["high_calm"] = max(worst["high_calm"], cover)
            rows.append(row)
        how = f"noise pooled over 4 levels (the others at {', '.join(map(str, OTHER_LEVELS))} times the sd)"
        report.say("", f"*{how if pooled else 'these boots alone'}*")
        report.table(["noise", "boot sd %", "trial sd %", *(f"{n} new" for n in boots)], rows)
    slack = 3 * np.sqrt(0.05 * 0.95 / draws)  # the worst of 90 cells
    report.target(
        "false `violated`, model's assumptions hold, one look: mean, worst of all cells", "at most 5 %",
        f"{percent(float(np.mean(errors)))} %, {percent(worst['normal'])} % (Monte Carlo 3 sd: {percent(slack)})",
        met=worst["normal"] <= 0.05 + slack,
    )  # fmt: skip
    report.target(
        "false `violated`, heavy tails and two modes, worst cell", "at most 8 %", f"{percent(worst['other'])} %",
        met=worst["other"] <= 0.08,
    )  # fmt: skip
    report.target(
        "coverage of the 90 % interval, trial sd up to 2.5 boot sds", "88 to 92 %",
        f"{percent(worst['low'])} to {percent(worst['high_calm'])} %",
        met=worst["low"] >= 0.88 - 0.005 and worst["high_calm"] <= 0.92 + 0.005,
    )  # fmt: skip
    # The largest of many cells is largest by luck too; fresh draws of it have none.
    again = one_look(widest[0], 5 * draws, pooled=widest[1], salt="again")[2]
    report.target(
        "coverage where trial noise dominates (it errs wide)", "88 to 92 %",
        f"up to {percent(worst['high'])} %, in {5 * draws:,} fresh draws of that cell {percent(again)} %",
        met=again <= 0.92 + 0.005,
    )  # fmt: skip


def false_alarms_looks(report: Report, draws: int, *, quick: bool) -> None:
    report.say(
        "", "## False alarms after sequential looks, and under drift", "",
        "True change exactly the margin (5 %), 5 stored boots, noise pooled over 4 levels, O'Brien-Fleming spending."
        " `violated` in % of draws: references from 5 sessions / the plain pooled t with the error split evenly over"
        " the looks / references from 1 session.",
    )  # fmt: skip
    plans = ((1, 2, 3),) if quick else ((1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 3, 5, 8))
    rows = []
    worst = {0.0: 0.0, 0.01: 0.0, 0.02: 0.0}
    for drift in (0.0, 0.02) if quick else (0.0, 0.01, 0.02):
        for sb in (0.02,) if quick else (0.005, 0.01, 0.02, 0.035, 0.05):
            row = [percent(drift), percent(sb)]
            for looks in plans:
                truth = Truth(boot_sd=sb, drift_sd=drift, change=-MARGIN)
                wrong = looked(truth, looks, draws)[1]
                plain = plain_pooled_t(truth, looks, 4 * draws)[1]
                single = replace(truth, sessions=1)
                alone = looked(single, looks, draws // 2)[1] if drift and looks == (1, 2, 3) else None
                worst[drift] = max(worst[drift], wrong)
                row.append(
                    f"{percent(wrong)} / {percent(plain)}" + (f" / {percent(alone)}" if alone is not None else "")
                )
            rows.append(row)
    report.table(["drift sd %", "boot sd %", *(f"looks at {', '.join(map(str, p))}" for p in plans)], rows)
    report.target(
        "false `violated` after looks, no drift, worst cell", "at most 5 %", f"{percent(worst[0.0])} %",
        met=worst[0.0] <= 0.05,
    )  # fmt: skip
    for drift in (0.01, 0.02):
        if worst[drift]:
            slack = 2 * np.sqrt(0.08 * 0.92 / draws)
            report.target(
                f"false `violated` after looks, drift {percent(drift)} %, references from 5 sessions, worst cell",
                "at most 8 %", f"{percent(worst[drift])} % (Monte Carlo 2 sd: {percent(slack)})",
                met=worst[drift] <= 0.08 + slack,
            )  # fmt: skip


def coverage_with_sessions(report: Report, draws: int) -> None:
    report.say(
        "", "## What allowing for drift costs and saves", "",
        "Sessions recorded, references from 5 of them, noise pooled over 4 levels, one look. Each field: false"
        " `violated` at the margin / coverage of the 90 % interval.",
    )  # fmt: skip
    rows = []
    calm: list[float] = []
    worst, alarm = 1.0, 0.0
    for drift in (0.0, 0.01, 0.02):
        for sb in (0.005, 0.02, 0.05):
            row = [percent(drift), percent(sb)]
            for n in (1, 3, 8):
                wrong, _, cover = one_look(Truth(boot_sd=sb, drift_sd=drift, candidate=n), draws, pooled=True)
                row.append(f"{percent(wrong)} / {percent(cover)}")
                if drift == 0:
                    calm.append(cover)
                else:
                    worst, alarm = min(worst, cover), max(alarm, wrong)
            rows.append(row)
    report.table(["drift sd %", "boot sd %", "1 new", "3 new", "8 new"], rows)
    _attainable(report)
    report.target(
        "coverage of the 90 % interval with sessions recorded, no drift (it errs wide)", "88 to 92 %",
        f"{percent(min(calm))} to {percent(max(calm))} %", met=min(calm) >= 0.88 and max(calm) <= 0.92,
    )  # fmt: skip
    report.target(
        "false `violated`, one look at 1, 3 or 8 boots, drift 1 or 2 %, worst cell", "at most 8 %",
        f"{percent(alarm)} %", met=alarm <= 0.08,
    )  # fmt: skip
    report.target(
        "coverage with sessions recorded, drift 1 or 2 %, worst cell", "88 to 92 %", f"{percent(worst)} %",
        met=worst >= 0.88,
    )  # fmt: skip


def _attainable(report: Report) -> None:
    report.say(
        "", "No rule covers 90 % at every drift without knowing it, unless it is narrower than it may be without drift"
        " or narrows where sessions scatter more. The best that is left, by a linear program over all rules"
        " (`benchmarks/calibration/attainable.py`), strays by:", "",
    )  # fmt: skip
    rows = []
    for new in (3, 8):
        for levels in (1, 4):
            worst, coverage = best_deviation(new, levels, 400_000, seeded("attainable", new, levels))
            rows.append(
                [str(new), str(levels), percent(worst), f"{percent(min(coverage))} to {percent(max(coverage))}"]
            )
    report.table(["new boots", "levels pooled", "points off 90 %", "coverage %"], rows)


def other_shapes_and_places(report: Report, draws: int) -> None:
    report.say(
        "", "## Where the assumptions fail", "",
        "Looks at 1, 2, 3, no drift, boot sd 2 %, true change exactly the margin; `violated` / `holds` in %. The"
        " loudest and the quietest of four levels are the ones that pooling serves worst.",
    )  # fmt: skip
    rows = []
    for name, truth in (
        ("normal", Truth()),
        ("heavy tails (t, 3 df)", Truth(shape="heavy")),
        ("two modes (1 boot in 5 slow by 4 sd)", Truth(shape="bimodal")),
        ("another configuration (`alike=False`) with 3 times the spread", Truth(louder=3.0)),
    ):
        for sessions, pooled in ((5, True), (0, True), (0, False)):
            cell = replace(truth, sessions=sessions, change=-MARGIN)
            holds, wrong, _ = looked(cell, (1, 2, 3), draws, pooled=pooled, alike=truth.louder == 1)
            how = f"{'pooled' if pooled else 'not pooled'}, {'5 sessions' if sessions else 'no sessions'}"
            rows.append([f"{name}; {how}", percent(wrong), percent(holds)])
            if truth != Truth():
                report.target(
                    f"false `violated` after looks: {name}; {how}",
                    "at most 8 %",
                    f"{percent(wrong)} %",
                    met=wrong <= 0.08,
                )
    scales = (1.0, *OTHER_LEVELS)
    errors = []
    for judged in sorted(scales):
        others = tuple(s / judged for s in scales if s != judged)
        rng = seeded("place", judged)
        truth = Truth(change=-MARGIN)
        sample = draw(rng, truth, draws)
        levels = [draw(rng, replace(truth, boot_sd=0.02 * f, trial_sd=0.005 * f), draws) for f in others]
        answer, _ = sequential(sample, (1, 2, 3), plan((1, 2, 3)).levels, MARGIN, levels)
        errors.append(rate(answer == -1))
        rows.append([f"judged level is the one at {judged} of {', '.join(map(str, sorted(scales)))}",
                     percent(errors[-1]), percent(rate(answer == 1))])  # fmt: skip
    report.table(["cell", "`violated` %", "`holds` %"], rows)
    answers = {}
    for alike in (True, False):
        for pooled in (True, False):
            fine = looked(Truth(sessions=0), (1, 2, 3), draws, pooled=pooled, alike=alike)[0]
            slow = looked(Truth(sessions=0, change=-0.10), (1, 2, 3), draws, pooled=pooled, alike=alike)[1]
            answers[alike, pooled] = f"{percent(fine)} and {percent(slow)} %"
    report.say(
        "", "What allowing for a noisier control costs where it is as calm after all, 5 boots against up to 3 of one"
        " session (`holds` at no change and `violated` at 10 % slower):"
        f" {answers[False, True]} with `alike=False`, {answers[True, True]} without, pooled;"
        f" {answers[False, False]} and {answers[True, False]} not pooled.",
    )  # fmt: skip
    report.target(
        "false `violated` after looks, each of the four levels judged in turn: mean, worst", "at most 5 %, 8 %",
        f"{percent(float(np.mean(errors)))} %, {percent(max(errors))} %",
        met=float(np.mean(errors)) <= 0.05 and max(errors) <= 0.08,
    )  # fmt: skip


def power(report: Report, draws: int, *, quick: bool) -> None:
    report.say(
        "", "## Power", "",
        "Boot sd 2 %, 5 stored boots; the right answer in % of draws within the budget, and the boots it took."
        " The plain pooled t splits the error evenly over the looks.",
    )  # fmt: skip
    rows = []
    asked = (
        ("no change, margin 5 %, within 3", 0.0, 0.05, (1, 2, 3), 0.90),
        ("10 % slower, margin 5 %, within 3", -0.10, 0.05, (1, 2, 3), 0.90),
        ("5 % slower, margin 2 %, within 5", -0.05, 0.02, (1, 2, 3, 4, 5), 0.60),
    )
    for what, change, margin, looks, wanted in asked:
        side = 0 if change == 0 else 1
        ours = looked(Truth(change=change), looks, draws, margin)
        plain = plain_pooled_t(Truth(change=change), looks, 4 * draws, margin)[side]
        alone = looked(Truth(change=change), looks, draws, margin, pooled=False)[side]
        unknown = looked(Truth(change=change, sessions=0), looks, draws, margin)[side]
        row = [what, percent(ours[side]), f"{ours[2]:.2f}", percent(alone), percent(unknown), percent(plain)]
        row.extend(
            percent(looked(Truth(change=change, drift_sd=drift), looks, draws // 2, margin)[side])
            for drift in (() if quick else (0.01, 0.02))
        )
        rows.append(row)
        report.target(
            f"{what} new boots, references from 5 sessions", f"at least {percent(wanted)} %",
            f"{percent(ours[side])} %", met=ours[side] >= wanted,
        )  # fmt: skip
    head = ["question", "ours, pooled", "boots", "ours, not pooled", "ours, sessions unknown", "plain pooled t"]
    report.table(head + ([] if quick else ["ours, drift 1 %", "ours, drift 2 %"]), rows)


def inference_doctor_cells(report: Report, draws: int) -> None:
    report.say(
        "", "## inference-doctor's published cells", "",
        "Threshold 10 %, CV 4 %, one look, equal runs a side, no sessions. In % of draws. Its Welch interval errs to"
        ' the safe side; "at its errors" is our rule at the stricter level that makes as many errors at the threshold'
        " as its rule does on the same draws.",
    )  # fmt: skip
    rule = RULES["inference-doctor (Welch interval on boots)"]
    edge = float(np.log1p(-0.10))
    rows = []
    for n, published in {3: (78, 37, 85), 5: (98, 65, 99)}.items():
        level = 0.05
        for change, figure in zip((-0.10, 0.0, -0.15, -0.20), (None, *published), strict=True):
            truth = Truth(boot_sd=0.04, trial_sd=0.0, trials=1, reference=n, candidate=n, sessions=0, change=change)
            rng = seeded("doctor", n, change)
            sample = draw(rng, truth, draws)
            theirs = rate(rule(sample, 0.10, rng) == (1 if change == 0 else -1))
            pooled, alone = (
                below(sample, (edge,), noise)[0] for noise in (learn(other_levels(rng, truth, draws)), None)
            )
            tails = (pooled, alone) if change == 0 else (1 - pooled, 1 - alone)
            if figure is None:
                level = float(np.quantile(tails[0], theirs))
            at_theirs, ours, single = rate(tails[0] <= level), rate(tails[0] <= 0.05), rate(tails[1] <= 0.05)
            what = {0.0: "no change, PASS", -0.10: "at the threshold, FAIL (an error)"}.get(
                change, f"{-change:.0%} drop, FAIL"
            )
            shares = [percent(share) for share in (theirs, at_theirs, ours, single)]
            rows.append([f"{n} a side", what, str(figure or ""), *shares])
            if figure is not None:
                report.target(
                    f"inference-doctor's cell, {n} a side, {what}, at its errors", f"better than {figure} %",
                    f"{percent(at_theirs)} %", met=at_theirs > figure / 100,
                )  # fmt: skip
    report.table(
        ["runs", "cell", "published", "its rule, here", "ours, at its errors", "ours", "ours, not pooled"], rows
    )


def peers(report: Report, draws: int) -> None:
    report.say(
        "", "## Peers on the same draws", "",
        "Boot sd 2 %, trial sd 1 %, 4 trials a boot, margin 5 %, 5 stored boots from 5 sessions, up to 3 new boots."
        " Each field: regression / fine / no answer, in % of draws. Rules that know no third answer call everything"
        " else fine.",
    )  # fmt: skip
    changes = (0.0, -0.03, -0.05, -0.10)
    for drift in (0.0, 0.02):
        answers: dict[str, list[str]] = {name: [] for name in RULES}
        answers["**ours, looks at 1, 2, 3**"] = []
        for change in changes:
            truth = Truth(trial_sd=0.01, drift_sd=drift, change=change)
            rng = seeded("peers", drift, change)
            sample, others = draw(rng, truth, draws), other_levels(rng, truth, draws)
            for name, rule in RULES.items():
                answers[name].append(_three(rule(sample, MARGIN, rng)))
            mine, _ = sequential(sample, (1, 2, 3), plan((1, 2, 3)).levels, MARGIN, others)
            answers["**ours, looks at 1, 2, 3**"].append(_three(mine))
        report.say("", f"*drift between sessions {drift:.0%}*")
        report.table(
            ["rule", "no change", "3 % slower", "5 % slower (margin)", "10 % slower"],
            [[name, *fields] for name, fields in answers.items()],
        )


def _three(answer: np.ndarray) -> str:
    return " / ".join(percent(rate(answer == value)) for value in (-1, 1, 0))


def paired_plans(report: Report, draws: int) -> None:
    report.say(
        "", "## Paired ABBA plans on a node that moves", "",
        "Boot sd 2 %, trial sd 1 %, margin 5 %, a steady drift within the session. Each field: false `violated` at the"
        " margin / `holds` at no change / `violated` at 10 % slower, in % of draws. No noise model, one look.",
    )  # fmt: skip
    rows = []
    for drift in (0.0, 0.002, 0.005, 0.01):
        row = [f"{drift:.1%} a boot"]
        for pairs in (3, 4, 5, 8):
            fields = []
            for change, wanted in ((-MARGIN, "violated"), (0.0, "holds"), (-0.10, "violated")):
                rng = seeded("pairs", drift, pairs, change)
                fields.append(
                    percent(rate(np.array([_pair(rng, drift, pairs, change) == wanted for _ in range(draws)])))
                )
            row.append(" / ".join(fields))
        rows.append(row)
    report.table(["drift", "3 pairs", "4 pairs", "5 pairs", "8 pairs"], rows)


def _pair(rng: np.random.Generator, drift: float, pairs: int, change: float) -> str:
    when = np.arange(2 * pairs)
    candidate = (when % 4 == 1) | (when % 4 == 2)
    y = drift * when + np.log1p(change) * candidate + rng.normal(0, 0.02, len(when))
    values = np.exp(y[:, None] + rng.normal(0, 0.01, (len(when), 4))).tolist()
    new = [value for value, mine in zip(values, candidate, strict=True) if mine]
    old = [value for value, mine in zip(values, candidate, strict=True) if not mine]
    return at_least(new, old, 1 - MARGIN, paired=True).status.value
