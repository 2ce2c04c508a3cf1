"""What a profile means for one server: its flags and environment, turned into step times, watts and fate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .flags import ServerArgs
    from .profiles import Curve, Effect, Profile

__all__ = ["Performance", "resolve"]


@dataclass(frozen=True)
class Performance:
    """Speed and power of one configuration on one machine, before noise."""

    profile: Profile
    graphs: bool
    speed: float
    power_w: float | None
    free_gb: float
    crash: str | None
    dies: str | None
    dies_at: int | None
    applied: tuple[str, ...]

    @property
    def _curve(self) -> Curve:
        return self.profile.decode_graph_s if self.graphs else self.profile.decode_eager_s

    def decode_s(self, running: int) -> float:
        """Seconds of one decode step with ``running`` requests."""
        return self._curve(running) / self.speed

    @property
    def entry_s(self) -> float:
        """Seconds between a request's arrival and the first pass that may take it."""
        return self.profile.entry_s / self.speed

    def prefill_s(self, tokens: int) -> float:
        """Seconds of one prefill pass over ``tokens`` new tokens."""
        return tokens / self.profile.prefill_tokens_per_s / self.speed

    def watts(self, running: int, factor: float) -> float:
        """Watts of one GPU while ``running`` requests are served at ``factor`` times the usual speed."""
        gpu = self.profile.gpu
        if running == 0:
            return gpu.loaded_idle_w
        if self.power_w is not None:
            return self.power_w
        above = self.profile.watts(running) - gpu.loaded_idle_w
        watts: float = gpu.loaded_idle_w + above * factor**self.profile.watts_exponent
        return min(watts, gpu.power_limit_w)


def resolve(profile: Profile, args: ServerArgs, environment: Mapping[str, str]) -> Performance:
    """Apply every effect of ``profile`` that these arguments and this environment call for."""
    effects = [effect for effect in profile.effects if _applies(effect, args, environment)]
    speed = 1.0
    for effect in effects:
        speed *= effect.speed
    doomed = [effect for effect in effects if effect.dies_at is not None]
    crashes = [effect.crash for effect in effects if effect.crash is not None]
    return Performance(
        profile=profile,
        graphs=not args["disable_cuda_graph"],
        speed=speed,
        power_w=min((e.power_w for e in effects if e.power_w is not None), default=None),
        free_gb=min((e.free_gb for e in effects if e.free_gb is not None), default=profile.model.free_gb),
        crash=crashes[0] if crashes else None,
        dies=doomed[0].dies if doomed else None,
        dies_at=min((e.dies_at for e in doomed if e.dies_at is not None), default=None),
        applied=tuple(effect.name for effect in effects),
    )


def _applies(effect: Effect, args: ServerArgs, environment: Mapping[str, str]) -> bool:
    return all(args[key] == value for key, value in effect.when.items()) and all(
        environment.get(key) == value for key, value in effect.when_env.items()
    )
