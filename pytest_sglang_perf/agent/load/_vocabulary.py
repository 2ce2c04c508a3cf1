"""Which token ids a prompt may be made of.

An id beyond the model's vocabulary is not refused by every server: sglang 0.5.23 was seen to answer 200, send nothing
and then lose its scheduler. So ids are kept inside the vocabulary that the model's own ``config.json`` states, where
the load runs beside the server and can read it, and otherwise within what every current large model has.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, Optional, Tuple

from ._http import ask

if TYPE_CHECKING:
    from ._spec import Spec

FALLBACK = (100, 20000)


def choose(spec: Spec) -> Tuple[Tuple[int, int], str]:
    """The range to draw from and where it is from, for the audit."""
    if spec.vocab is not None:
        return spec.vocab, "ordered"
    size = _vocabulary_size(spec)
    if size is None:
        return FALLBACK, "default: the model's vocabulary is not known here"
    # Special tokens sit at either end of a vocabulary; the middle is plain text in every tokenizer we know.
    return (size // 20, size * 3 // 4), f"config.json: vocabulary of {size}"


def _vocabulary_size(spec: Spec) -> Optional[int]:
    model = _model_path(spec)
    for config in _configs(model) if model else ():
        try:
            data = json.loads(config.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for part in (data, data.get("text_config")):  # multimodal models keep it one level down
            size = part.get("vocab_size") if isinstance(part, dict) else None
            if isinstance(size, int) and size > 1:
                return size
    return None


def _model_path(spec: Spec) -> Optional[str]:
    for path in ("/model_info", "/get_model_info"):
        try:
            status, body = ask(spec, "GET", path)
            data: Any = json.loads(body) if status == 200 else None
        except (OSError, ValueError):
            return None
        if isinstance(data, dict) and isinstance(data.get("model_path"), str):
            return str(data["model_path"])
    return None


def _configs(model: str) -> Iterator[Path]:
    """Where the model's configuration may lie: its folder, or the Hugging Face cache."""
    yield Path(model) / "config.json"
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    snapshots = hub / ("models--" + model.replace("/", "--")) / "snapshots"
    if snapshots.is_dir():
        yield from (folder / "config.json" for folder in sorted(snapshots.iterdir()))
