"""Taking the lease of a node, and telling the user who has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.errors import AgentError, LeaseUnavailable

if TYPE_CHECKING:
    from pytest_sglang_perf.nodes.open import OpenNode
    from pytest_sglang_perf.report.live import Live

__all__ = ["take_lease"]

#: On top of the wait for a lease: what dead sessions left is ended, and the driver is asked who computes.
EXTRA_S = 90.0


def take_lease(node: OpenNode, gpus: list[int] | None, wait_s: float, live: Live) -> None:
    """Take the lease of the node, or of some of its GPUs, waiting for at most ``wait_s`` seconds.

    Raises:
        LeaseUnavailable: somebody else has it, or computes there without one.
        AgentError: the node cannot give leases.
    """

    def told(event: dict[str, Any]) -> None:
        if event["event"] == "lease.waiting":
            live.note(f"waiting for node {node.name}: held by {_holder(event.get('holder'))}")

    unsubscribe = node.client.subscribe(told)
    try:
        answer = node.client.request(
            "lease.acquire", timeout=wait_s + EXTRA_S, gpus=gpus, wait_s=wait_s, purpose="pytest"
        )
    except AgentError as error:
        if error.kind == "lease_unavailable":
            raise LeaseUnavailable(
                f"node {node.name} is held by {_holder(error.details.get('holder'))}; waited {wait_s:.0f} s. "
                "Wait longer with --sglang-lease-wait=SECONDS, or ask them"
            ) from None
        if error.kind == "gpu_in_use":
            raise LeaseUnavailable(
                f"node {node.name} is in use by somebody without a lease, who was left alone: "
                f"{error}. Ask whoever it is to end it, or give the node other GPUs "
                "(gpus: [...] in the suite)"
            ) from None
        raise
    finally:
        unsubscribe()
    for warning in answer.get("warnings", ()):
        live.note(f"node {node.name}: {warning}")


def _holder(holder: Any) -> str:
    """Who holds a node, as a message names them."""
    if not isinstance(holder, dict):
        return "somebody who left no name"
    text = f"{holder.get('user', 'someone')}@{holder.get('host', 'an unknown host')} (pid {holder.get('pid', '?')}"
    if holder.get("purpose"):
        text += f", {holder['purpose']}"
    if holder.get("since"):
        text += f", since {holder['since']}"
    if holder.get("until"):
        text += f", until {holder['until']} at most"
    return text + ")"
