"""Run two generations of one prompt alternately, so that a slowdown of the machine affects both."""

from collections.abc import Iterator

from decoding.step import Step


def side_by_side(first: Iterator[Step], second: Iterator[Step]) -> tuple[list[Step], list[Step]]:
    """All steps of both. The one with fewer tokens takes the next step, so that both texts have similar length."""
    steps: tuple[list[Step], list[Step]] = ([], [])
    sources, tokens, open_ = (first, second), [0, 0], [0, 1]
    last = 1
    while open_:
        turn = min(open_, key=lambda i: (tokens[i], i == last))
        last = turn
        if (step := next(sources[turn], None)) is None:
            open_.remove(turn)
            continue
        steps[turn].append(step)
        tokens[turn] += len(step.tokens)
    return steps
