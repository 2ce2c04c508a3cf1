"""What a boot decided without being asked, read from its log: what fits, what was chosen, what was switched off.

``BootFacts`` is a plain dict of builtin types, so that it can be asserted on, compared and sent anywhere:

===========================  =======================================================================================
``max_total_num_tokens``     KV cache slots; with data parallelism those of the first rank (all in ``capacity``)
``max_running_requests``     requests that may run at once; may be fewer than asked for
``chunked_prefill_size``, ``max_prefill_tokens``, ``context_len``, ``available_gpu_mem_gb`` (or ``_cpu_``)
``capacity``                 one such dict per rank that printed one, by rank label (``""`` without ranks)
``kv_cache``                 ``{"tokens", "dtype", "k_gb", "v_gb"}``
``weights``                  ``{"elapsed_s", "type", "dtype", "avail_gb", "used_gb"}``
``cuda_graphs``              by kind (``"target decode"``): ``{"backend", "elapsed_s", "used_gb", "avail_gb"}``
``startup_s``                sglang's own timings by name (``cuda_graph.decode`` and so on), from 0.5.17 on
``backends``                 choices it announced, as the lines say them
``disabled``                 features it switched off, as the lines say them
``changed``                  settings it changed or deprecated, as the lines say them
``decode_batches``, ``decode_without_graph``   statistics lines, and how many ran without a CUDA graph
``prefill_batches``, ``prefill_without_graph``
``retractions``              requests thrown back into the queue because the KV cache was full
``nccl``                     version
===========================  =======================================================================================
"""

from __future__ import annotations

import re
from typing import Any

from ._literals import required_words
from .lines import Line, parse_line

__all__ = ["BootFacts"]

_MOST = 64
_CAPACITY = re.compile(r"max_total_num_tokens=\d+, ")
_PAIR = re.compile(r"(\w+)=(-?[\d.]+)( GB)?")
_KV = re.compile(r"KV Cache is allocated\.(?: dtype: ([\w.]+),)? #tokens: (\d+)(.*)")
_SIZE = re.compile(r"(K|V|KV) size: ([\d.]+) GB")
_WEIGHTS = re.compile(r"Load weight end\.(?: elapsed=([\d.]+) s,)?(?: type=(\w+),)?(?: dtype=([\w.]+),)?")
_GRAPH_BEGIN = re.compile(r"Capture ((?:\w+ )*)(?:cuda|CUDA) graph begin\.(?: backend=(\w+))?")
_GRAPH_END = re.compile(r"Capture ((?:\w+ )*)(?:cuda|CUDA) graph end\.")
_ELAPSED = re.compile(r"elapsed[=:] ?([\d.]+) s")
_MEM = re.compile(r"(avail mem|mem usage)=(-?[\d.]+) GB")
_TIMING = re.compile(r"(\w+)=([\d.]+)")
_GRAPHS = re.compile(r"cuda_graph=\{([^}]*)\}")
_RETRACTED = re.compile(r"#retracted[_ ]reqs?: (\d+)|#retracted-req: (\d+)")
_NCCL = re.compile(r"using nccl==(\S+)")
_DISABLED = re.compile(
    r"\b(?:is|are|was) (?:\w+ )?disabled\b|\b[Dd]isabl(?:e|ing) .*(?:because|since|due to|incompatible|for)\b|"
    r"\bdisabling\b|\bnot compatible\b.*\bdisab|\bwill be disabled\b"
)
_CHANGED = re.compile(
    r"\bdeprecated\b|\boverrid(?:e|es|ing|den)\b|\b(?:is|are) (?:adjusted|changed|reset|set|forced) to\b"
    r"|\b[Ff]all(?:ing)? ?back\b|\b[Aa]uto[- ](?:set|resolved|forced)\b|\b[Dd]efaulting\b|\bhas no effect\b"
    r"|\bis ignored\b"
)
_BACKEND = re.compile(
    r"\b[Uu]se \S+ (?:as )?(?:\w+ )*backend\b|\bUsing \S+ (?:as |for )?(?:\w+ )*(?:backend|kernel)"
    r"|[Bb]ackend not specified|"
    r"\b[Rr]esolved .*backend\b|^Tree cache initialized|Attention backend"
)
_SETTINGS = tuple(
    (key, pattern, required_words(pattern.pattern) or ("",))
    for key, pattern in (("disabled", _DISABLED), ("changed", _CHANGED), ("backends", _BACKEND))
)
# Said on every boot, and not about performance.
_NOT_SETTINGS = (
    "Ignore import error",
    "OpenAI Responses API",
    "Can not initialize",
    "No chat template",
    "Using fallback token IDs",
    "[transformers]",
    "Load",
)
# Before logging is set up, settings are announced without a stamp.
_UNSTAMPED = ("'--", "Cuda graph is", "CUDA graph is", "Attention backend", "Disable ")


class BootFacts(dict[str, Any]):
    """Facts of one boot; feed it the lines and read it as a dict."""

    def __init__(self) -> None:
        super().__init__(
            capacity={},
            cuda_graphs={},
            backends=[],
            disabled=[],
            changed=[],
            decode_batches=0,
            decode_without_graph=0,
            prefill_batches=0,
            prefill_without_graph=0,
            retractions=0,
        )

    def feed(self, text: str) -> None:
        """Take the next line."""
        self.feed_line(parse_line(text))

    def feed_line(self, line: Line) -> None:
        """Take the next line, already parsed."""
        kind = line.kind
        if kind == "batch":
            self._batch(line.message)
        elif kind == "log" or (kind == "more" and line.text.startswith(_UNSTAMPED)):
            self._message(line)

    def _batch(self, text: str) -> None:
        kind = "decode" if text.startswith("Decode") else "prefill"
        self[f"{kind}_batches"] += 1
        if "graph: False" in text:
            self[f"{kind}_without_graph"] += 1

    def _message(self, line: Line) -> None:
        text = line.message
        head = text[:12]
        if head == "max_total_nu" and _CAPACITY.match(text):
            self._capacity(line)
        elif head == "KV Cache is ":
            self._kv_cache(text)
        elif head == "Load weight ":
            self._weights(text)
        elif head.startswith("Capture "):
            self._graph(text)
        elif head == "Engine start":
            self._timings(text)
        elif head == "KV cache poo":
            retracted = _RETRACTED.search(text)
            self["retractions"] += int(retracted[1] or retracted[2]) if retracted else 1
        elif "nccl==" in text:
            version = _NCCL.search(text)
            if version is not None:
                self["nccl"] = version[1]
        elif not text.startswith(_NOT_SETTINGS):
            self._setting(text)

    def _timings(self, text: str) -> None:
        graphs = _GRAPHS.search(text)
        flat = text if graphs is None else text.replace(graphs[0], "")
        timings = {name: float(value) for name, value in _TIMING.findall(flat)}
        if graphs is not None:
            timings |= {f"cuda_graph.{name}": float(value) for name, value in _TIMING.findall(graphs[1])}
        self["startup_s"] = timings

    def _capacity(self, line: Line) -> None:
        values: dict[str, float | int] = {}
        for name, value, unit in _PAIR.findall(line.message):
            number = value.rstrip(".")
            values[name + ("_gb" if unit else "")] = float(number) if unit or "." in number else int(number)
        self["capacity"][line.ranks] = values
        for name, number in values.items():
            self.setdefault(name, number)

    def _kv_cache(self, text: str) -> None:
        found = _KV.match(text)
        if found is None:
            return
        sizes = {f"{name.lower()}_gb": float(size) for name, size in _SIZE.findall(found[3])}
        self["kv_cache"] = {"tokens": int(found[2]), "dtype": found[1], **sizes}

    def _weights(self, text: str) -> None:
        found = _WEIGHTS.match(text)
        if found is None:
            return
        memory = {name: float(value) for name, value in _MEM.findall(text)}
        self["weights"] = {
            "elapsed_s": float(found[1]) if found[1] else None,
            "type": found[2],
            "dtype": found[3],
            "avail_gb": memory.get("avail mem"),
            "used_gb": memory.get("mem usage"),
        }

    def _graph(self, text: str) -> None:
        begin = _GRAPH_BEGIN.match(text)
        if begin is not None:
            self["cuda_graphs"].setdefault(begin[1].strip() or "decode", {})["backend"] = begin[2]
            return
        end = _GRAPH_END.match(text)
        if end is None:
            return
        elapsed = _ELAPSED.search(text)
        memory = {name: float(value) for name, value in _MEM.findall(text)}
        self["cuda_graphs"].setdefault(end[1].strip() or "decode", {}).update(
            elapsed_s=float(elapsed[1]) if elapsed else None,
            used_gb=memory.get("mem usage"),
            avail_gb=memory.get("avail mem"),
        )

    def _setting(self, text: str) -> None:
        for key, pattern, words in _SETTINGS:
            for word in words:  # cheap, and mostly none
                if word in text:
                    break
            else:
                continue
            if len(self[key]) < _MOST and pattern.search(text):
                if text not in self[key]:  # every rank says it
                    self[key].append(text)
                return
