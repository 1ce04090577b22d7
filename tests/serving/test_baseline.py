"""Which plain answer a speedup is measured against, and when there is none."""

import time
from dataclasses import dataclass

import pytest

from serving import baseline
from serving.baseline import Conditions, PlainBaselines
from speculoos.cpu_load import OtherCpuLoad, are_loads_comparable

PROMPT = list(range(40))


@dataclass
class FakeStep:
    """A step with one token and a time."""

    ms_verify: float
    kind: str = "plain"
    tokens: tuple[int, ...] = (1,)
    ms_draft: float = 0.0
    ms_other: float = 0.0


def answer(tokens: int = 32, ms: float = 10.0) -> list[FakeStep]:
    return [FakeStep(99.0, "prefill"), *(FakeStep(ms) for _ in range(tokens))]


def make_conditions(
    prompt: list[int] = PROMPT, tokens: int = 32, shared_with: str = "", load: float | None = 0.1
) -> Conditions:
    return Conditions.of(prompt, answer(tokens), shared_with, load)


@pytest.fixture
def baselines() -> PlainBaselines:
    """A base with one plain answer at 100 tokens a second."""
    plain = PlainBaselines()
    plain.offer("base", answer(), make_conditions())
    return plain


def test_the_same_prompt_under_the_same_load_is_a_reference(baselines):
    result = baselines.compare("base", answer(ms=5.0), make_conditions())
    assert result["speedup"] == pytest.approx(2.0) and result["plain_tokens_per_second"] == 100.0
    assert result["plain_reference"] == {"source": "plain run", "same_prompt": True, "tokens": 32, "shared_with": ""}


def test_another_prompt_of_the_same_length_is_a_reference_and_marked_as_such(baselines):
    result = baselines.compare("base", answer(ms=5.0), make_conditions(prompt=[7] * 60))
    assert result["speedup"] == pytest.approx(2.0) and not result["plain_reference"]["same_prompt"]


@pytest.mark.parametrize(
    "conditions",
    [
        make_conditions(prompt=[7] * 400),
        make_conditions(prompt=[7] * 40, tokens=600),
        make_conditions(shared_with="a training"),
        make_conditions(load=0.5),
    ],
    ids=["a longer prompt", "a longer answer", "beside a job", "a busier machine"],
)
def test_an_answer_under_other_conditions_is_no_reference(baselines, conditions):
    assert set(baselines.compare("base", answer(), conditions)) == {"decode_tokens_per_second"}
    assert set(baselines.compare("other", answer(), make_conditions())) == {"decode_tokens_per_second"}


def test_the_same_prompt_is_preferred_to_a_later_one_of_the_same_length(baselines):
    baselines.offer("base", answer(ms=40.0), make_conditions(prompt=[7] * 40))
    assert baselines.compare("base", answer(), make_conditions())["speedup"] == pytest.approx(1.0)
    baselines.offer("base", answer(ms=20.0), make_conditions())
    assert baselines.compare("base", answer(), make_conditions())["speedup"] == pytest.approx(2.0)


def test_short_and_old_answers_are_no_references(baselines, monkeypatch):
    short = PlainBaselines()
    short.offer("base", answer(tokens=15), make_conditions())
    assert "speedup" not in short.compare("base", answer(), make_conditions())
    later = time.monotonic() + baseline.RECENT_SECONDS + 1
    monkeypatch.setattr(baseline.time, "monotonic", lambda: later)
    assert "speedup" not in baselines.compare("base", answer(), make_conditions())


def test_the_load_of_other_processes_is_a_share_without_our_own():
    other_load = OtherCpuLoad()
    own_seconds, end = time.process_time(), time.monotonic() + 1.0
    while time.monotonic() < end:
        sum(range(1000))
    own_seconds = time.process_time() - own_seconds
    share, cores = other_load.share(), baseline_cores()
    assert share is not None and 0 <= share <= 1 - own_seconds / (1.0 * cores) + 0.15


def baseline_cores() -> int:
    import psutil

    return psutil.cpu_count()


def test_an_unknown_load_is_comparable_to_any():
    assert are_loads_comparable(None, 0.9) and are_loads_comparable(0.1, 0.29) and not are_loads_comparable(0.1, 0.4)
    assert OtherCpuLoad().share() is None
