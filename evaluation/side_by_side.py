"""Two generations of one prompt, a step of one and a step of the other: whatever slows the machine slows both."""

from collections.abc import Iterator

from decoding.step import Step


def side_by_side(first: Iterator[Step], second: Iterator[Step]) -> tuple[list[Step], list[Step]]:
    """Every step of both, in turns: whoever has fewer tokens goes on, so that both are at the same length of text."""
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
