from __future__ import annotations

import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.report import finish, html, markdown
from pytest_sglang_perf.report.chart import Mark, Row, draw
from pytest_sglang_perf.report.run_file import RunRecord, read_run
from pytest_sglang_perf.stored_boots import of_run
from tests.unit.cli import building
from tests.unit.cli.building import H200, SIM

if TYPE_CHECKING:
    from pathlib import Path

EVIL = """</pre></td><script>alert(1)</script><img src=http://example.org/x onerror="alert(2)">{{ 7 * 7 }}'"`|"""


class Page(HTMLParser):
    """What a browser would make of the text: elements with attributes, and the words between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.rows: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.text = "\n".join(self.words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in {"meta", "br", "line", "circle", "polygon", "polyline", "rect"}:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words.append(data)
        if "tr" in self._open:
            self.rows[-1] += f" {data.strip()}"


def record(node=H200, **more: Any) -> RunRecord:
    """A run with a regression, a refuted hypothesis, a limit that holds, and a crash."""
    run = building.run("r1", {"sbo": 1.0, "mscclpp": 0.97}, node=node, boots=2)
    simulated = node is SIM
    mine = {level: of_run(run)["sbo"].levels["short", level].boots for level in (1, 256)}
    other = of_run(run)["mscclpp"].levels["short", 256].boots["output_throughput"]
    stored = building.boots([1700.0, 1690, 1710, 1705, 1702], session="old")

    def claim(metric: str, factor: float, reference, level: int, name: str = "baseline"):
        now = list(mine[level][metric])
        return building.claim(metric, factor, now, reference, level=level, other=name, simulated=simulated)

    kept = claim("output_throughput", 0.97, stored, 256), claim("ttft_p50", 0.5, None, 1)
    pays = claim("output_throughput", 1.05, list(other), 256, "mscclpp (control)")
    crash = {"kind": "crashed", "class": "graph-capture", "phase": "cuda_graph"}
    text = 'sglang server "piecewise" crashed\n  123 | RuntimeError: no such kernel'
    run.tests = [
        building.one_test("perf_tests/test_sbo.py::test_pays", pays, control="mscclpp", expect="refuted", reason="no"),
        building.one_test("perf_tests/test_sbo.py::test_keeps", *kept, outcome="failed"),
        building.one_test("test_pw.py::test_boots", server="piecewise", outcome="failed", text=text, error=crash),
    ]
    run.session.update(more)
    return run


def test_it_tells_claims_with_both_sides_verdicts_crashes_and_cost() -> None:
    page = Page(html.render(record()))
    (regression,) = [row for row in page.rows if ">= 0.97 x baseline" in row]
    assert "violated" in regression
    assert re.search(r"sbo, 2 boots, 4 trials", regression)
    assert re.search(r"1,70\d tok/s .*baseline, 5 boots, 10 trials", regression)
    assert re.search(r"-1\d\.\d % \[-1\d\.\d % \.\. -\d+\.\d %\]", regression)
    for said in (
        "graph-capture in phase cuda_graph",
        "RuntimeError: no such kernel",
        "2 boots in 92 s, 8 trials in 31 s",
        H200.slug,
        "580.95.05",
        "0.5.10",
        "expected to be refuted: no",
        "absent: power_draw: there is no GPU here",
    ):
        assert said in page.text, said
    assert "simulated" not in page.text
    assert page.text.index("test_keeps") < page.text.index("test_pays")  # what failed comes first


def test_what_is_simulated_says_so_on_every_row() -> None:
    text = html.render(record(SIM))
    page = Page(text)
    claims = [row for row in page.rows if "concurrency" in row]
    assert len(claims) == 3
    assert all("simulated" in row for row in claims)
    charts = re.findall(r"<svg viewBox.*?</svg>", text, re.DOTALL)
    assert charts
    for chart in charts:
        levels = re.findall(r'<text class="level"', chart)
        tags = re.findall(r'<text class="tag"[^>]*>simulated<', chart)
        assert len(levels) == len(tags) > 0
    assert "no figure here is a measurement of hardware" in page.text


def test_nothing_from_outside_becomes_markup() -> None:
    run = record()
    run.session.update(node=EVIL, suite=EVIL, plan=EVIL, run=EVIL, node_class=EVIL, plugin_version=EVIL)
    run.session["node_details"] = {EVIL: EVIL, "gpus": [EVIL]}
    run.problems, run.baselines = [EVIL], [EVIL]
    for test in run.tests:
        test.update(nodeid=EVIL, server=EVIL, text=EVIL, reason=EVIL, expect="refuted", outcome=EVIL, control=EVIL)
        for claim in test["claims"]:
            claim["text"] = EVIL
            claim["candidate"]["label"] = EVIL
            if claim["reference"]:
                claim["reference"]["label"] = EVIL
            claim["verdict"].update(method=EVIL, warnings=[EVIL])
        if test["error"]:
            test["error"].update(**{"class": EVIL, "phase": EVIL})
    for one in run.measured:
        one.update(server=EVIL, version=EVIL, workload=EVIL, config=EVIL)
        one["trials"][0].update(notes=[EVIL], absent={EVIL: EVIL})
    page = Page(html.render(run))
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img", "iframe", "link", "object", "a", "base", "form", "embed"}
    attributes = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in attributes if name.startswith("on")} | attributes & {"src", "href", "xlink:href"}
    assert page.text.count("<script>alert(1)</script>") >= 15
    assert "49" not in re.findall(r"\b49\b", page.text)  # a template in a log is text too
    assert "default-src 'none'" in dict(page.elements[4][1])["content"]


def test_the_page_asks_for_nothing_from_anywhere() -> None:
    text = html.render(record())
    assert not re.findall(r"url\(|@import|https?://|src=|href=", text)


def test_a_run_without_anything_has_a_page() -> None:
    empty = RunRecord()
    assert "Nothing was measured" in html.render(empty)
    assert "No test told anything" in html.render(empty)


def test_claims_of_an_older_run_file_have_no_level() -> None:
    run = record()
    for test in run.tests:
        for claim in test["claims"]:
            del claim["level"]
    page = Page(html.render(run))
    assert "violated" in page.text


def test_the_chart_draws_the_candidate_against_its_references() -> None:
    charts = re.findall(r"<figure>.*?</figure>", html.render(record()), re.DOTALL)
    throughput = charts[0]
    (_, at_256) = re.findall(r'<text class="level".*?(?=<text class="level"|</svg>)', throughput, re.DOTALL)
    dots = dict(re.findall(r'<g class="(now|baseline|control)">.*?class="dot" (?:cx|points|x)="([\d.]+)', at_256))
    assert float(dots["now"]) < float(dots["baseline"])  # 12 % slower than what is stored
    assert float(dots["control"]) < float(dots["now"])
    assert "against mscclpp (control)" in throughput


def test_what_failed_comes_before_what_could_not_be_told() -> None:
    run = building.run("r", {})
    outcomes = ("passed", "inconclusive", "no baseline", "failed")
    run.tests = [building.one_test(f"test_{word.split()[0]}", outcome=word) for word in outcomes]
    text = Page(html.render(run)).text
    order = sorted(outcomes, key=lambda word: text.index(f"test_{word.split()[0]}"))
    assert order == ["failed", "inconclusive", "no baseline", "passed"]


def test_levels_of_two_workloads_are_kept_apart() -> None:
    """A claim on one workload is no reference for the other's level of the same number."""
    run = record()
    for test in run.tests:
        test["control"] = None
    run.measured += [{**one, "workload": "long", "workload_fingerprint": "f2"} for one in run.measured]
    throughput = re.findall(r"<figure>.*?</figure>", html.render(run), re.DOTALL)[0]
    rows = re.findall(r'<text class="level".*?(?=<text class="level"|</svg>)', throughput, re.DOTALL)
    drawn = {re.findall(r">(.*?)<", row)[0]: row.count('class="dot"') for row in rows}
    assert drawn == {"long at 1": 0, "long at 256": 0, "short at 1": 0, "short at 256": 3}


values = st.floats(1e-6, 1e9)


@given(st.lists(st.lists(st.tuples(values, st.floats(0, 0.9), st.floats(0, 5)), min_size=1, max_size=3), min_size=1))
def test_every_coordinate_of_a_chart_is_inside_it(levels) -> None:
    rows = [
        Row(
            f"at {number}",
            tuple(
                Mark(kind, kind, value, value * (1 - down), value * (1 + up), 2)
                for kind, (value, down, up) in zip(("now", "baseline", "control"), sides, strict=False)
            ),
        )
        for number, sides in enumerate(levels)
    ]
    drawing = str(draw(rows, unit="s", title="t"))
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing)[0])
    for name, limit in (("x", width), ("y", height)):
        places = re.findall(rf'\b(?:{name}1|{name}2|c{name}|{name})="([^"]+)"', drawing)
        assert places
        assert all(-1 <= float(place) <= limit for place in places)
    assert "nan" not in drawing
    assert "inf" not in drawing.replace("infinite", "")


def test_a_level_without_a_reference_is_not_drawn_as_no_change() -> None:
    """Beside levels that have one, a dot at zero would claim that nothing moved."""
    now, stored = Mark("now", "sbo", 100.0, 95.0, 105.0, 2), Mark("baseline", "baseline", 101.0, 99.0, 103.0, 5)
    drawing = str(draw([Row("at 1", (now,)), Row("at 8", (now, stored))], unit="tok/s", title="t"))
    assert drawing.count('class="dot"') == 2
    assert "[95.0 .. 105] tok/s, no reference" in drawing


def test_zeros_have_a_plain_axis() -> None:
    drawing = draw([Row("at 1", (Mark("now", "sbo", 0.0, 0.0, 3.0, 1),))], unit="requests", title="t")
    assert "3.00 requests" in drawing


def test_a_wild_interval_is_cut_off_with_an_arrow() -> None:
    marks = Mark("now", "sbo", 100.0, 10.0, 900.0, 1), Mark("baseline", "baseline", 101.0, 99.0, 103.0, 5)
    drawing = draw([Row("at 1", marks)], unit="tok/s", title="t")
    assert drawing.count("<polyline") == 2


# -- the other reports ----------------------------------------------------------------------------------------


def test_report_folder_gets_all_three_files(tmp_path: Path) -> None:
    options: Any = SimpleNamespace(report=tmp_path / "out", update_baselines=False)
    run = record()
    assert finish.finish(run, options, tmp_path / "baselines") == []
    assert run.written == [str(tmp_path / "out" / name) for name in ("run.json", "report.md", "report.html")]
    again = read_run(tmp_path / "out")
    assert again.to_dict() == run.to_dict()
    assert html.render(again) == (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert markdown.render(again) == (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("node", [H200, SIM])
def test_markdown_fences_and_cells_cannot_be_left(node) -> None:
    run = record(node)
    run.tests[2].update(text="```\n</details>\n````", nodeid="test_x.py::test[<b>]")
    run.tests[1]["claims"][0]["text"] = "a | b <script>"
    text = markdown.render(run)
    assert "`````\n```\n</details>\n````\n`````\n</details>" in text
    assert "<summary>test_x.py::test[&lt;b&gt;]" in text
    assert "| a \\| b &lt;script> |" in text
    claims = [line for line in text.splitlines() if "tok/s" in line]
    assert all(("(simulated)" in line) is (node is SIM) for line in claims)
