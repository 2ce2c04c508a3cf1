"""How much error each look may spend.

Looking at the data after every boot and stopping at the first "significant" look multiplies the error. A
spending function alpha(t) says how much of it may be used up by the time a share t of the information is in
(Lan and DeMets, Biometrika 70, 1983); the limits that spend exactly that are found by integrating the joint
density of the successive statistics (Armitage, McPherson and Rowe, J. R. Stat. Soc. A 132, 1969; Jennison
and Turnbull, "Group Sequential Methods", 2000, chapter 19). They are returned as nominal one-sided levels,
so that they serve t-like intervals too (the significance level approach, ibid., section 11.4).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

from pytest_sglang_perf.errors import VerdictError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Spending", "nominal_levels", "spent"]

Spending = Literal["obrien-fleming", "power", "pocock"]

_NODES = 401
_REACH = 8.0


def spent(t: float, alpha: float, family: Spending) -> float:
    """Error that may have been spent by information share ``t``.

    Args:
        t: Between 0 and 1.
        alpha: One-sided error of the whole plan.
        family: ``obrien-fleming`` saves it for the last look (Lan and DeMets 1983), ``pocock`` spends early
            and evenly (ibid.), ``power`` lies between: alpha t^2 (Kim and DeMets, Biometrika 74, 1987).
    """
    if t >= 1:
        return alpha
    if t <= 0:
        return 0.0
    if family == "obrien-fleming":
        return float(2 * special.ndtr(special.ndtri(alpha / 2) / math.sqrt(t)))
    if family == "pocock":
        return alpha * math.log(1 + (math.e - 1) * t)
    if family == "power":
        return alpha * t**2
    raise VerdictError(f"spending function {family!r} is not known; use obrien-fleming, power or pocock")


def nominal_levels(information: Sequence[float], alpha: float, family: Spending) -> tuple[float, ...]:
    """Nominal one-sided level of each look.

    Args:
        information: Information at each look, rising; the last one is the whole.
        alpha: One-sided error of the plan.
        family: Spending function.

    Returns:
        One level a look; comparing each look's one-sided p-value with its level spends ``alpha`` in all.
    """
    return _nominal_levels(tuple(information), alpha, family)


@lru_cache(maxsize=256)
def _nominal_levels(information: tuple[float, ...], alpha: float, family: Spending) -> tuple[float, ...]:
    shares = [value / information[-1] for value in information]
    if any(b <= a for a, b in zip([0.0, *shares], shares, strict=False)):
        raise VerdictError(f"information must rise from look to look, got {list(information)}")
    levels: list[float] = []
    used = 0.0
    grid = np.zeros(1)  # where the score sqrt(t) Z is, while no limit was crossed, and with what mass
    mass = np.ones(1)
    before = 0.0
    for share in shares:
        target = spent(share, alpha, family) - used
        limit = _limit(grid, mass, share - before, share, target)
        levels.append(float(special.ndtr(-limit / math.sqrt(share))))
        used += target
        fresh = np.linspace(-_REACH * math.sqrt(share), limit, _NODES)
        step = fresh[1] - fresh[0]
        weight = np.full(_NODES, step)
        weight[0] = weight[-1] = step / 2
        sd = math.sqrt(share - before)
        kernel = np.exp(-0.5 * ((fresh[:, None] - grid[None, :]) / sd) ** 2) / (sd * math.sqrt(2 * math.pi))
        mass = (kernel @ mass) * weight
        grid, before = fresh, share
    return tuple(levels)


def _limit(grid: np.ndarray, mass: np.ndarray, growth: float, share: float, target: float) -> float:
    """Score that is crossed at this look with probability ``target``, by bisection."""
    low, high = -_REACH * math.sqrt(share), _REACH * math.sqrt(share)
    for _ in range(60):
        middle = (low + high) / 2
        crossed = float(np.sum(mass * special.ndtr((grid - middle) / math.sqrt(growth))))
        low, high = (middle, high) if crossed > target else (low, middle)
    return (low + high) / 2
