"""The run as Markdown, for a pull request comment or a job summary."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.report.decisions import decisions
from pytest_sglang_perf.report.figures import estimate

if TYPE_CHECKING:
    from pytest_sglang_perf.report.run_file import RunRecord

__all__ = ["render"]


def render(record: RunRecord) -> str:
    """Return the whole report; on a simulated node every row says so."""
    session = record.session
    node = f"`{session.get('node')}`, node class `{session.get('node_class')}`"
    if record.simulated:
        node += ", **simulated**"
    lines = ["## sglang-perf", "", f"Node {node}.", ""]
    lines.append(", ".join(f"{n} {word}" for word, n in sorted(record.outcomes().items())) + ".")
    lines += ["", "| test | claim | now | reference | effect | verdict |", "|---|---|---|---|---|---|"]
    for test in record.tests:
        name = "`" + test["nodeid"].rsplit("/", 1)[-1].replace("|", "\\|").replace("`", "") + "`"
        if not test["claims"]:
            lines.append(f"| {name} | | | | | {_cell(test['outcome'], record)} |")
        for claim in test["claims"]:
            lines.append(f"| {name} | {_claim_cells(claim, record)} |")
    crashed = [test for test in record.tests if test["failed"] and test["text"]]
    for test in crashed:
        text = test["text"].rstrip()
        fence = _fence(text)
        lines += ["", f"<details><summary>{escape(test['nodeid'])}: {escape(test['outcome'])}</summary>", "", fence]
        lines += [text, fence, "</details>"]
    decided = decisions(record.measured)
    if decided:
        lines += ["", "<details><summary>what sglang decided by itself</summary>", ""]
        lines += [f"- {_plain(text)}" for text in decided]
        lines += ["", "</details>"]
    for text in [*record.baselines, *record.problems]:
        lines += ["", text]
    return "\n".join(lines) + "\n"


def _fence(text: str) -> str:
    """A fence that nothing in the text can close: a log line may well hold one of its own."""
    longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
    return "`" * (longest + 1)


def _plain(text: str) -> str:
    """Text for a table's cell, in which neither markup nor a further cell can begin."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text).replace("|", "\\|").replace("\n", " ")


def _claim_cells(claim: dict[str, Any], record: RunRecord) -> str:
    unit = claim["unit"]
    verdict = claim.get("verdict")
    effect = ""
    if verdict:
        low, high = verdict["interval"]
        effect = f"{verdict['effect']:.3f} [{low:.3f} .. {high:.3f}]" if claim["reference"] else ""
    return " | ".join(
        (
            _plain(claim["text"]),
            _side(claim["candidate"], unit),
            _side(claim["reference"], unit) if claim["reference"] else "",
            effect,
            _cell(claim["status"], record),
        )
    )


def _side(side: dict[str, Any], unit: str) -> str:
    count = f"{side['boots']} boot{'s' if side['boots'] != 1 else ''}"
    return f"{estimate(side['value'], side['low'], side['high'], unit)}, {count}"


def _cell(word: str, record: RunRecord) -> str:
    return f"**{word}** (simulated)" if record.simulated else f"**{word}**"
