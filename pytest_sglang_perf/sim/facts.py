"""What the server tells about itself: the bodies of its informative endpoints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .flags import ServerArgs
    from .profiles import Model, Profile
    from .scheduler import Scheduler
    from .seams import Limits

__all__ = ["gauges", "load", "model_card", "model_info", "server_info"]


def server_info(
    args: ServerArgs, profile: Profile, limits: Limits, scheduler: Scheduler, own: dict[str, Any]
) -> dict[str, Any]:
    """``/server_info``: every argument, what it was launched with, capacity, and ``own`` facts of this boot."""
    context = int(args["context_length"] or profile.model.context_len)
    state = {
        **args.fields,
        "effective_max_running_requests_per_dp": limits.running,
        "last_gen_throughput": scheduler.throughput,
        "memory_usage": {
            "weight": profile.model.weights_gb,
            "kvcache": profile.model.kv_gb,
            "token_capacity": limits.tokens,
            "startup_available": own["available_gpu_mem"],
        },
    }
    return {
        **args.fields,
        "launch_command": " ".join(args.argv),
        "status": "ready",
        "max_total_num_tokens": limits.tokens,
        "max_req_input_len": min(limits.tokens, context) - 6,
        "internal_states": [state],
        **own,
    }


def model_info(args: ServerArgs, model: Model) -> dict[str, Any]:
    """``/model_info``."""
    return {
        "model_path": args["model_path"],
        "tokenizer_path": args["tokenizer_path"],
        "served_model_name": args["served_model_name"],
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": model.model_type,
        "architectures": [model.architecture],
    }


def model_card(name: str, context: int) -> dict[str, Any]:
    """One entry of ``/v1/models``."""
    card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "sglang", "root": name}
    return card | {"parent": None, "max_model_len": context}


def load(scheduler: Scheduler, limits: Limits) -> dict[str, Any]:
    """One entry of ``/v1/loads``."""
    return {
        "dp_rank": 0,
        "num_running_reqs": len(scheduler.running),
        "num_waiting_reqs": len(scheduler.waiting),
        "num_used_tokens": scheduler.used_tokens,
        "max_total_num_tokens": limits.tokens,
        "token_usage": round(scheduler.used_tokens / limits.tokens, 4),
        "gen_throughput": scheduler.throughput,
        "max_running_requests": limits.running,
    }


def gauges(scheduler: Scheduler, limits: Limits, counters: dict[str, int]) -> dict[str, float]:
    """The gauges of ``/metrics``."""
    prompt = counters["prompt_tokens_total"]
    return {
        "num_running_reqs": len(scheduler.running),
        "num_queue_reqs": len(scheduler.waiting),
        "num_used_tokens": scheduler.used_tokens,
        "token_usage": scheduler.used_tokens / limits.tokens,
        "gen_throughput": scheduler.throughput,
        "max_total_num_tokens": limits.tokens,
        "cache_hit_rate": counters["cached_tokens_total"] / prompt if prompt else 0.0,
    }
