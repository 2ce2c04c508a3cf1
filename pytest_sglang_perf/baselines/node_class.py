"""Which machines' figures may be compared: the node class."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["NodeClass", "comparable", "node_class", "url_class"]

# What differs between classes, in the words of messages. Other details (the full driver version, memory) are kept
# for the reader and do not set classes apart: a driver's patch level changes too often to start anew each time.
_DECIDES = {
    "simulated": "simulated profile",
    "gpus": "GPUs",
    "power_limit_w": "power limit (W)",
    "driver_branch": "driver branch",
    "cpu": "CPU model",
    "cpus": "CPU count",
    "url": "URL",
}
_LONGEST = 120
_CPU_NOISE = re.compile(r"\((?:R|TM|C)\)|\bCPU\b|@.*|\b\d+-Core\b|\bProcessor\b|\bwith .*", re.IGNORECASE)


@dataclass(frozen=True)
class NodeClass:
    """A class of nodes.

    Attributes:
        slug: its name, which is a folder's name as well, such as ``8x-nvidia-h200-700w-driver580-amd-epyc-9575f``.
        details: what it is made of, in builtin types.
    """

    slug: str
    details: Mapping[str, Any]


def node_class(
    facts: Mapping[str, Any], *, simulated: str | None = None, gpus: Collection[int] | None = None
) -> NodeClass:
    """The class of a node.

    Args:
        facts: the agent's answer to ``facts``.
        simulated: the profile's name on a simulated node; nothing else counts there.
        gpus: indices of the GPUs in use; None for all.
    """
    if simulated:
        return NodeClass(f"sim-{_slug(simulated)}", {"simulated": simulated})
    cpu = _cpu(str(facts.get("cpu_model") or "unknown"))
    used = [gpu for gpu in facts.get("gpus") or [] if gpus is None or gpu.get("index") in gpus]
    if not used:
        cpus = int(facts.get("cpus") or 0)
        details: dict[str, Any] = {"cpu": cpu, "cpus": cpus}
        return NodeClass(_folder(f"cpu-{_slug(cpu)}-{cpus}c"), details | _for_readers(facts))
    models = Counter(str(gpu.get("name") or "unknown GPU") for gpu in used)
    watts = sorted({round(float(gpu["power_limit_w"])) for gpu in used if gpu.get("power_limit_w") is not None})
    drivers = sorted({str(gpu["driver"]) for gpu in used if gpu.get("driver")})
    branches = sorted({driver.split(".")[0] for driver in drivers})
    parts = [f"{count}x-{_slug(model)}" for model, count in sorted(models.items())]
    parts += ["-".join(f"{watt}w" for watt in watts)] if watts else []
    parts += [f"driver{_slug('-'.join(branches))}"] if branches else []
    details = {
        "gpus": [f"{count} x {model}" for model, count in sorted(models.items())],
        "power_limit_w": watts,
        "driver_branch": branches,
        "driver": ", ".join(drivers),
        "cpu": cpu,
    }
    return NodeClass(_folder("-".join([*parts, _slug(cpu)])), details | _for_readers(facts))


def url_class(url: str) -> NodeClass:
    """The class of a server that somebody else runs: what is behind its address is not known, so the address counts."""
    address = url.partition("://")[2].partition("/")[0]
    return NodeClass(_folder(f"url-{_slug(address)}"), {"url": address})


def comparable(one: NodeClass, other: NodeClass) -> list[str]:
    """What sets two classes apart, such as ``power limit (W): 600 here, 450 there``; empty if nothing does."""
    return [
        f"{words}: {_words(one.details.get(key))} here, {_words(other.details.get(key))} there"
        for key, words in _DECIDES.items()
        if one.details.get(key) != other.details.get(key)
    ]


def _for_readers(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"kernel": str(facts["kernel"])} if facts.get("kernel") else {}


def _cpu(model: str) -> str:
    return " ".join(_CPU_NOISE.sub(" ", model).split()) or "unknown"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9+]+", "-", text.lower()).strip("-") or "unknown"


def _folder(slug: str) -> str:
    """A slug that every file system takes as a folder's name."""
    if len(slug) <= _LONGEST:
        return slug
    return f"{slug[: _LONGEST - 9]}-{hashlib.sha256(slug.encode()).hexdigest()[:8]}"


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
