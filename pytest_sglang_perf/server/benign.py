"""Lines that look like trouble on servers that are well.

Each was seen on a healthy boot or read in the source next to code that carries on. Where such a line is stamped,
the traceback that hangs below it is benign with it.
"""

from __future__ import annotations

import re

__all__ = ["is_benign"]

_AT_START = re.compile(
    r"""
      Ignore\ import\ error\ when\ loading
    | Can\ not\ initialize\ OpenAIServingResponses
    | OpenAI\ Responses\ API\ .*\ disabled
    | Fail\ to\ set\ RLIMIT
    | Cannot\ detect\ CUDA\ architecture
    | Failed\ to\ load\ generation\ config
    | Using\ custom\ SIGQUIT\ handler
    | post-warmup\ freeze_gc\ failed
    | \[http_server\]\ Error
    | Exception\ in\ ASGI\ application
    | Error\ in\ detect_and_parse
    | Failed\ to\ load\ (?:staged\ )?JIT\ .*kernel
    | kill_process_tree\ called:\ .*include_parent=False
    | PyMscclpp\ is\ disabled
    | \[?rank\d+\]?:?\[W
    | \[W\d{3}\ .*(?:socket\.cpp|ProcessGroup\w*\.cpp|TCPStore\.cpp|Module\.cpp)
    | Invalid\ HTTP\ request\ received
    | Disaggregation\ warmup\ failed
    | (?:No|Unable\ to\ find)\ .*chat\ template
    | No\ tuned\ config|Using\ default\ MoE\ kernel\ config|Config\ file\ not\ found
    | The\ memory\ capacity\ is\ unbalanced.*(?:ignored|warning|performance)
    | \[transformers\]
    """,
    re.VERBOSE,
)
_ANYWHERE = re.compile(
    r"""
      watchdog\ timeout\ \(self\.watchdog_timeout=[\d.]+,\ self\.soft=True
    | \bNCCL\ INFO\b
    | (?:User|Future|Deprecation|FastAPIDeprecation|Syntax|Runtime|Resource|PendingDeprecation|Import)Warning:
    | (?:[Ff]alling\ back|[Ff]all\ back|[Ff]allback)\b
    | [Ww]ill\ be\ (?:ignored|disabled|skipped)
    """,
    re.VERBOSE,
)
# Words of which each pattern of `_ANYWHERE` has one; a test holds the two together.
_WORDS = ("watchdog timeout", "NCCL INFO", "Warning:", "all back", "alling back", "allback", "ill be ")


def is_benign(message: str) -> bool:
    """Whether a message that sounds bad says nothing about the server's health."""
    return _AT_START.match(message) is not None or (
        any(word in message for word in _WORDS) and _ANYWHERE.search(message) is not None
    )
