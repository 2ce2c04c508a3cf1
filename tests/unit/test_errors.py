from __future__ import annotations

from pytest_sglang_perf import errors


def test_the_tree_drawn_in_the_docstring_is_the_tree_in_the_code() -> None:
    drawn: list[tuple[int, str]] = []
    assert errors.__doc__ is not None
    for line in errors.__doc__.splitlines():
        stripped = line.lstrip(" │├└─")
        word = stripped.split(" ")[0]
        if word in errors.__all__:
            drawn.append(((len(line) - len(stripped)) // 4, word))
    assert {name for _, name in drawn} == set(errors.__all__)
    parents: dict[int, str] = {}
    for depth, name in drawn:
        parents[depth] = name
        if depth > 1:
            expected = getattr(errors, parents[depth - 1])
            assert getattr(errors, name).__bases__ == (expected,)
