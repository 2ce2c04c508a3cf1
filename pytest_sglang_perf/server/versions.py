"""Tell the sglang release from a log.

sglang does not print its version. Its argument dump (and, where parsing failed, the usage text) names every
argument it knows, and every release so far has added some: the newest name seen is the release. The table lists
names that first appeared in a release and were still there in 0.5.23; it was read from the published wheels
(the newest post release of each).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .lines import Line

__all__ = ["NEW_ARGUMENTS", "OLDEST", "VersionGuess"]

NEW_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "0.5.23": (
        "enable_http_worker_reuseport",
        "enable_return_aux_hidden_states",
        "prefill_decode_interval_min_bs",
    ),
    "0.5.22": ("enable_cp_tp_group_sharing", "disaggregation_decode_allocation_policy", "enable_watermark"),
    "0.5.21": (
        "constrained_json_max_whitespace_cnt",
        "enable_encoder_swa_bounded_replay",
        "boundary_reduction",
    ),
    "0.5.20": ("sampling_mask_max_tokens", "radix_eviction_policy_config", "flashinfer_a2a_dispatch_type"),
    "0.5.19": ("speculative_dsa_topk_backend", "http2_initial_connection_window_size", "gated_launch_port"),
    "0.5.18": ("mm_preprocess_cache_size_mb", "http2_max_concurrent_streams", "enable_tp_lm_head_all_to_all"),
    "0.5.17": ("mamba_max_states_per_path", "return_hidden_states_mode", "flashinfer_autotune_skip_ops"),
    "0.5.16": (
        "default_chat_template_kwargs",
        "speculative_dspark_block_size",
        "enable_dsa_cache_layer_split",
    ),
    "0.5.15": ("linear_replayssm_cache_len", "enable_page_major_kv_layout", "dsa_paged_mqa_logits_backend"),
    "0.5.14": (
        "disable_prefill_cuda_graph",
        "mamba_radix_cache_strategy",
        "flashinfer_allreduce_fusion_backend",
    ),
    "0.5.13": ("encoder_bootstrap_port", "kv_canary_sweep_interval", "load_snapshot_publish_interval"),
    "0.5.12": (
        "forward_pass_metrics_ipc_name",
        "prefill_only_disable_kv_cache",
        "speculative_draft_window_size",
    ),
    "0.5.11": (
        "weight_loader_prefetch_num_threads",
        "speculative_ngram_external_corpus_path",
        "enable_http2",
    ),
    "0.5.10": (
        "enable_fused_moe_sum_all_reduce",
        "speculative_ngram_max_trie_depth",
        "enable_aiter_allreduce_fusion",
    ),
    "0.5.9": ("moe_dp_size", "attn_cp_size", "mamba_backend"),
    "0.5.8": (
        "enable_lora_overlap_loading",
        "prefill_delayer_max_delay_passes",
        "uvicorn_access_log_exclude_prefixes",
    ),
    "0.5.7": (
        "enable_return_routed_experts",
        "remote_instance_weight_loader_backend",
        "enable_dynamic_chunking",
    ),
    "0.5.6": ("checkpoint_engine_wait_weights_before_ready", "disable_flashinfer_cutlass_moe_fp4_allgather"),
}
"""Release -> argument names it brought, newest first."""

OLDEST = "before 0.5.6"

# Said outright by check_env, pip and container labels that people paste before their logs.
_STATED = re.compile(r"\bsglang(?:==|: | version:? v?)(\d+\.\d+\.\d+(?:\.post\d+)?)\b", re.IGNORECASE)
_REMARKS = ("sglang/launch_server.py:", "glang==", "glang: ", "glang version", "GLang version")
_RANK = {release: rank for rank, release in enumerate(NEW_ARGUMENTS)}
_RELEASE_OF = {name: release for release, names in NEW_ARGUMENTS.items() for name in names}
_NAME = re.compile(r"(?:--|['( ])([a-z][a-z0-9_-]+)(?==|': |[ \]|,]|$)")

# Where no argument dump is left (a log that was cut): phrases and the oldest release that has them.
_PHRASES = (
    ("Init parallel begin.", "0.5.21"),
    ("Init Unified Radix Cache", "0.5.18"),
    ("Engine startup timings", "0.5.17"),
    ("Disable prefill CUDA graph because", "0.5.14"),
    ("kill_process_tree called", "0.5.13"),
    ("#pending-token: ", "0.5.11"),
    ("Disable piecewise CUDA graph because", "0.5.6"),
)
# The line of launch_server.py that recommends `sglang serve`, in the first release that has it there.
_WARNING = re.compile(r"sglang/launch_server\.py:(\d+): UserWarning")
_WARNED_AT = {
    "51": "0.5.10",
    "54": "0.5.11",
    "55": "0.5.14",
    "56": "0.5.16",
    "57": "0.5.18",
    "63": "0.5.19",
    "71": "0.5.20",
}


class VersionGuess:
    """Collects what tells the release; feed it every line that may."""

    def __init__(self) -> None:
        self._stated: str | None = None
        self._by_names: str | None = None
        self._at_least: str | None = None

    @property
    def version(self) -> str | None:
        """``"0.5.16"``, ``"0.5.21 or newer"`` where only phrases tell, or None."""
        if self._stated or self._by_names:
            return self._stated or self._by_names
        return None if self._at_least is None else f"{self._at_least} or newer"

    def feed(self, line: Line) -> None:
        text = line.text
        if line.kind == "args":
            self._names(text, whole=True)
        elif line.kind == "more":
            if "[--" in text:
                self._names(text, whole=False)
            elif self._by_names is None and self._stated is None and any(word in text for word in _REMARKS):
                self._from_remark(text)
        elif self._by_names is None and line.kind == "log":
            for phrase, release in _PHRASES:
                if line.message.startswith(phrase):
                    self._at_least = _newer(self._at_least, release)

    def _from_remark(self, text: str) -> None:
        stated = _STATED.search(text)
        if stated is not None:
            self._stated = stated[1]
        warned = _WARNING.search(text)
        if warned is not None and warned[1] in _WARNED_AT:
            self._at_least = _newer(self._at_least, _WARNED_AT[warned[1]])

    def _names(self, text: str, *, whole: bool) -> None:
        if whole:
            self._by_names = None  # a later boot in the same log may be another release
        for name in map(_plain, _NAME.findall(text)):
            release = _RELEASE_OF.get(name)
            if release is not None:
                self._by_names = _newer(self._by_names, release)
        if whole and self._by_names is None:
            self._by_names = OLDEST


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _newer(one: str | None, other: str) -> str:
    if one not in _RANK:
        return other
    return one if _RANK[one] < _RANK[other] else other
