"""Which plain answer a speedup is counted against, and when there is none."""

import time
from dataclasses import dataclass

import pytest

from serving import baseline
from serving.baseline import Conditions, PlainBaselines
from speculoos.other_work import OtherCpuLoad, are_loads_comparable

PROMPT = list(range(40))


@dataclass
class Made:
    """A step with one token and a time."""

    ms_verify: float
    kind: str = "plain"
    tokens: tuple[int, ...] = (1,)
    ms_draft: float = 0.0
    ms_other: float = 0.0


def answer(tokens: int = 32, ms: float = 10.0) -> list[Made]:
    return [Made(99.0, "prefill"), *(Made(ms) for _ in range(tokens))]


def under(prompt: list[int] = PROMPT, tokens: int = 32, shared_with: str = "", load: float | None = 0.1) -> Conditions:
    return Conditions.of(prompt, answer(tokens), shared_with, load)


@pytest.fixture
def measured() -> PlainBaselines:
    """A base with one plain answer at 100 tokens a second."""
    made = PlainBaselines()
    made.offer("base", answer(), under())
    return made


def test_the_same_prompt_under_the_same_load_is_a_reference(measured):
    found = measured.compare("base", answer(ms=5.0), under())
    assert found["speedup"] == pytest.approx(2.0) and found["plain_tokens_per_second"] == 100.0
    assert found["plain_reference"] == {"source": "plain run", "same_prompt": True, "tokens": 32, "shared_with": ""}


def test_another_prompt_of_the_same_length_is_one_too_and_says_so(measured):
    found = measured.compare("base", answer(ms=5.0), under(prompt=[7] * 60))
    assert found["speedup"] == pytest.approx(2.0) and not found["plain_reference"]["same_prompt"]


@pytest.mark.parametrize(
    "conditions",
    [
        under(prompt=[7] * 400),
        under(prompt=[7] * 40, tokens=600),
        under(shared_with="a training"),
        under(load=0.5),
    ],
    ids=["a longer prompt", "a longer answer", "beside a job", "a busier machine"],
)
def test_what_was_measured_under_other_conditions_is_none(measured, conditions):
    assert set(measured.compare("base", answer(), conditions)) == {"decode_tokens_per_second"}
    assert set(measured.compare("other", answer(), under())) == {"decode_tokens_per_second"}


def test_the_same_prompt_goes_before_a_later_one_of_the_same_length(measured):
    measured.offer("base", answer(ms=40.0), under(prompt=[7] * 40))
    assert measured.compare("base", answer(), under())["speedup"] == pytest.approx(1.0)
    measured.offer("base", answer(ms=20.0), under())
    assert measured.compare("base", answer(), under())["speedup"] == pytest.approx(2.0)


def test_short_and_old_answers_are_none(measured, monkeypatch):
    short = PlainBaselines()
    short.offer("base", answer(tokens=15), under())
    assert "speedup" not in short.compare("base", answer(), under())
    later = time.monotonic() + baseline.RECENT_SECONDS + 1
    monkeypatch.setattr(baseline.time, "monotonic", lambda: later)
    assert "speedup" not in measured.compare("base", answer(), under())


def test_the_work_of_other_processes_is_a_share_and_our_own_is_not_in_it():
    counted = OtherCpuLoad()
    own, end = time.process_time(), time.monotonic() + 1.0
    while time.monotonic() < end:
        sum(range(1000))
    own = time.process_time() - own
    share, cores = counted.share(), baseline_cores()
    assert share is not None and 0 <= share <= 1 - own / (1.0 * cores) + 0.15


def baseline_cores() -> int:
    import psutil

    return psutil.cpu_count()


def test_what_is_not_known_is_given_the_doubt():
    assert are_loads_comparable(None, 0.9) and are_loads_comparable(0.1, 0.29) and not are_loads_comparable(0.1, 0.4)
    assert OtherCpuLoad().share() is None
