"""The lines that end a boot: a process died or will, or somebody asked the server to stop."""

from __future__ import annotations

import re

__all__ = ["asks_to_stop", "death_kind", "may_end"]

_DEATH = re.compile(
    r"""
      (?P<exception>
        (?:Scheduler|DetokenizerManager|TokenizerManager|DataParallelController|Multi\w+)\ hit\ an\ exception)
    | (?P<sigquit>   (?:Message:\ ')?Received\ sigquit\ from\ a\ child\ proces|SIGQUIT\ received\.)
    | (?P<subprocess>[Ss]ubprocess\ \S+\ \(pid=\d+\)\ crashed)
    | (?P<child>     Rank\ \d+\ scheduler\ (?:died|is\ dead)|Scheduler\ or\ DataParallelController\ \d+\ terminated)
    | (?P<init>      Initialization\ failed\.)
    | (?P<watchdog>  (?:\w+\ )?[Ww]atchdog\ timeout\ \(self\.watchdog_timeout=(?!.*self\.soft=True))
    | (?P<bind>      (?:\[Errno\ \d+\]\ )?error\ while\ attempting\ to\ bind\ on\ address)
    | (?P<usage>     [\w./\ -]{1,80}:\ error:\ (?:unrecognized\ arguments|argument\ -|the\ following\ arguments
                        |ambiguous\ option|one\ of\ the\ arguments))
    | (?P<native>    Fatal\ Python\ error:|terminate\ called\ after\ throwing|!+\ Segfault\ encountered
                        |Segmentation\ fault)
    | (?P<killed>    Killed$|\S+:\ line\ \d+:\ +\d+\ Killed\ )
    | (?P<killtree>  kill_process_tree\ called:\ .*include_parent=True)
    """,
    re.VERBOSE,
)
# torch's watchdog, behind a head of any length.
_GROUP = ("Process group watchdog thread terminated with exception", "we are taking the entire process down")
_STOP = re.compile(r"SIGTERM received|SIGINT received|Gracefully exiting|KeyboardInterrupt\b|Terminated$")


def may_end(text: str) -> bool:
    """A cheap test before the expressions below."""
    return (
        "rror" in text
        or "exce" in text
        or "igquit" in text
        or "SIG" in text
        or "crashed" in text
        or "ied" in text
        or "dead" in text
        or "ermina" in text
        or "taking the entire" in text
        or "failed" in text
        or "imeout" in text
        or "Segm" in text
        or "Segf" in text
        or "kill_" in text
        or "Killed" in text
        or "Interrupt" in text
        or "Gracefully" in text
    )


def death_kind(text: str) -> str | None:
    """How this message says that a process ended or will, or None.

    ``exception`` is followed by its traceback; every other kind stands for itself. Soft watchdogs only dump.
    """
    found = _DEATH.match(text)
    if found is not None:
        return found.lastgroup
    return "group" if any(words in text for words in _GROUP) else None


def asks_to_stop(text: str) -> bool:
    """Whether this message says that somebody wants the server to end."""
    return _STOP.match(text) is not None
