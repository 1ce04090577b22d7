"""Figures of an evaluation on tiny bases: exactness, ties versus faults, and drafts that always or never hit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cli import main as cli
from decoding.step import EmittedToken, Step
from decoding.target import fast_target
from evaluation import acceptance
from evaluation.acceptance import acceptance_result, evaluate
from evaluation.questions import built_in, read_questions, turns
from evaluation.ties import first_difference, gap_at
from models.base import LoadedBase, load_base
from models.chat import render
from models.runtime.argmax import HeadArgmax
from models.runtime.linear import packing_works
from speculoos.errors import BadInput, Cancelled
from speculoos.reporting import SilentReporter
from speculoos.settings import Settings
from tests.tiny import make_tiny_base

QUESTIONS = [
    {"id": "a", "category": "x", "messages": [{"role": "user", "content": "the quick brown fox " * 3}]},
    {
        "id": "b",
        "category": "y",
        "messages": [{"role": "user", "content": "1 2 3"}, {"role": "user", "content": "4 5"}],
    },
]
FIELDS = {
    "mean_accepted_length",
    "mean_accepted_length_interval",
    "speedup",
    "speedup_interval",
    "acceptance_by_depth",
    "identical_to_plain",
    "ties",
    "tokens_per_second",
    "plain_tokens_per_second",
    "per_category",
}


@pytest.fixture(scope="module")
def base(tiny_base: Path) -> LoadedBase:
    return load_base(tiny_base)


def test_a_lossless_drafter_is_identical_and_every_promised_field_is_there(base: LoadedBase) -> None:
    result = evaluate(base, None, QUESTIONS, SilentReporter(), max_tokens=24, options={"drafter": "ngram"})
    assert set(result) >= FIELDS and json.loads(json.dumps(result)) == result
    assert result["identical_to_plain"] is True and result["differences"] == []
    assert result["prompts"] == 3 and set(result["per_category"]) == {"x", "y"}
    assert result["per_category"]["y"]["prompts"] == 2
    assert result["mean_accepted_length"] >= 1 and result["tokens_per_second"] > 0
    assert result["dtype"] == "float32" and result["machine"]["torch"] == torch.__version__


def test_without_a_drafter_speculation_is_plain_decoding(base: LoadedBase) -> None:
    result = evaluate(base, None, QUESTIONS, SilentReporter(), max_tokens=8)
    assert result["mean_accepted_length"] == 1.0 and result["speedup"] == 1.0 and result["identical_to_plain"]
    assert result["speedup_interval"] == result["mean_accepted_length_interval"] == [1.0, 1.0]
    assert result["tokens_per_second"] == result["plain_tokens_per_second"]


class RecordingReporter(SilentReporter):
    """Records progress and samples. `now` is a clock that each question advances by the next of `seconds`."""

    def __init__(self, seconds: tuple[float, ...] = ()) -> None:
        self.calls: list[tuple[int, int | None, str]] = []
        self.seconds = list(seconds)
        self.now = 0.0
        self.results: list[tuple[int, dict]] = []

    def sample(self, step: int, record: dict) -> None:
        self.results.append((step, record))

    def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
        self.calls.append((done, total, note))
        self.now += self.seconds.pop(0) if self.seconds else 0.0


def evaluate_with(
    reporter: RecordingReporter, base: LoadedBase, monkeypatch: pytest.MonkeyPatch, noise: float = -1.0, **limits: Any
) -> dict:
    monkeypatch.setattr(acceptance, "MAX_TIMING_NOISE", noise)
    # the reporter's clock, so that passes take known times
    monkeypatch.setattr(acceptance, "monotonic", lambda: reporter.now)
    return evaluate(base, None, QUESTIONS, reporter, max_tokens=8, options={"drafter": "ngram"}, **limits)


def test_progress_counts_the_worst_case_from_the_start_and_never_falls_back(
    base: LoadedBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second question has two turns. First every timing counts as too noisy, then none does."""
    reporter = RecordingReporter()
    result = evaluate_with(reporter, base, monkeypatch)
    assert (result["prompts"], result["passes"]) == (3, acceptance.PASSES) == (3, 3)
    assert [(done, total) for done, total, _ in reporter.calls] == [*((n, 6) for n in range(1, 7)), (6, 6)]
    assert "pass 1 of at most 3" in reporter.calls[0][2]
    assert [note for _, _, note in reporter.calls[2:6]] == ["noisy, repeating (2 of 3)"] * 2 + [
        "noisy, repeating (3 of 3)"
    ] * 2
    records = [(step, record["question"], record["category"]) for step, record in reporter.results]
    assert records == [(1, "a", "x"), (2, "b", "y")], "each question's result once, as it comes"
    assert all(
        record["mean_accepted_length"] >= 1 and record["tokens_per_second"] > 0 for _, record in reporter.results
    )
    reporter = RecordingReporter()
    assert evaluate_with(reporter, base, monkeypatch, noise=1e9)["passes"] == 1
    shares = [done / total for done, total, _ in reporter.calls]
    assert shares == sorted(shares) and reporter.calls[-1][:2] == (2, 2)


def test_passes_take_at_most_three_times_as_long_as_the_first(
    base: LoadedBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pass takes 2 s, so repeating ends in the second pass, after 6 s."""
    reporter = RecordingReporter((1, 1, 5, 5, 5, 5))
    assert evaluate_with(reporter, base, monkeypatch)["passes"] == 2
    assert reporter.calls[-1][:2] == (3, 3), "one question of the second pass"


def test_no_question_is_begun_after_the_time_limit(base: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the two questions takes a second."""
    cut = "The time limit was reached after 1 of 2 questions."
    for seconds, prompts, progress, reason in ((0.5, 1, (1, 1), cut), (1.5, 3, (2, 2), ""), (60, 3, (6, 6), "")):
        reporter = RecordingReporter((1,) * 6)
        result = evaluate_with(reporter, base, monkeypatch, max_minutes=seconds / 60)
        assert (result["prompts"], reporter.calls[-1][:2], result["cut"]) == (prompts, progress, reason)


def test_there_must_be_a_question(base: LoadedBase) -> None:
    with pytest.raises(BadInput, match="no question"):
        evaluate(base, None, [], SilentReporter())


def test_a_wrong_token_is_a_fault_unless_the_two_best_logits_tie(
    base: LoadedBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong drafted token: not identical. If every gap counts as a tie: identical, with one tie per prompt."""
    generate_both = acceptance._generate_both

    def spoiled(bench: object, prompt: list[int], max_tokens: int, seed: int) -> tuple[list[Step], list[Step]]:
        plain, speculative = generate_both(bench, prompt, max_tokens, seed)
        if max_tokens > 8:
            speculative = [one_token_off(step) if step.index == 2 else step for step in speculative]
        return plain, speculative

    monkeypatch.setattr(acceptance, "_generate_both", spoiled)
    options = {"drafter": "ngram"}
    result = evaluate(base, None, QUESTIONS, SilentReporter(), max_tokens=12, options=options)
    assert result["identical_to_plain"] is False and result["ties"] == 0
    assert len(result["differences"]) == 3 and all(d["gap"] > 1e-3 for d in result["differences"])
    monkeypatch.setattr(acceptance, "TIE", 1e9)
    result = evaluate(base, None, QUESTIONS, SilentReporter(), max_tokens=12, options=options)
    assert result["identical_to_plain"] is True and result["ties"] == 3


def test_sampled_answers_belong_to_their_seed_and_are_not_compared(
    base: LoadedBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[tuple[list[int], list[int]]] = []
    generate_both = acceptance._generate_both

    def recorded(*arguments: object) -> tuple[list[Step], list[Step]]:
        steps = generate_both(*arguments)
        answers.append((acceptance.token_ids_of_steps(steps[0]), acceptance.token_ids_of_steps(steps[1])))
        return steps

    monkeypatch.setattr(acceptance, "_generate_both", recorded)
    runs = []
    for seed in (1, 1, 2):
        answers.clear()
        sampling = acceptance.AcceptanceSampling(1.0, 0.95, seed)
        choices = {"max_tokens": 12, "options": {"drafter": "ngram"}, "sampling": sampling, "passes": 1}
        result = evaluate(base, None, QUESTIONS, SilentReporter(), **choices)
        runs.append(list(answers))
        assert result["identical_to_plain"] is None and result["differences"] == [] and result["ties"] == 0
        assert (result["temperature"], result["top_p"], result["seed"]) == (1.0, 0.95, seed)
        assert result["mean_accepted_length"] >= 1 and result["tokens_per_second"] > 0
    assert runs[0] == runs[1] != runs[2]


def test_an_invalid_temperature_is_refused() -> None:
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            acceptance.AcceptanceSampling(**wrong)


def one_token_off(step: Step) -> Step:
    first = step.tokens[0]
    return Step(step.index, step.kind, (EmittedToken(first.id ^ 1, first.origin), *step.tokens[1:]), step.draft_record)


def test_the_gap_is_that_of_the_logits_that_chose_the_token(base: LoadedBase, tiny_base: Path) -> None:
    prompt = render(base.tokenizer, [{"role": "user", "content": "lazy dog"}])
    target = fast_target(base)
    fresh = load_base(tiny_base)
    plain: list[int] = []
    for _ in range(4):
        with torch.inference_mode():
            best = fresh.model(torch.tensor([[*prompt, *plain]])).logits[0, -1].topk(3)
        gap = gap_at(target, prompt, [*plain, int(best.indices[0])], [*plain, int(best.indices[2]), 7])
        assert gap == pytest.approx(float(best.values[0] - best.values[2]), abs=1e-3)
        plain.append(int(best.indices[0]))
    assert gap_at(target, prompt, plain, plain[:2]) is None, "the other run had ended"


@pytest.mark.skipif(not packing_works(torch.bfloat16), reason="best tokens are found by products in bfloat16")
@pytest.mark.parametrize(("apart", "tie"), [(1e-6, True), (0.2, False)])
def test_the_command_tells_a_near_tie_from_a_fault_where_best_tokens_are_found_without_logits(
    home: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    apart: float,
    tie: bool,
) -> None:
    """An fp32 base with tied embeddings whose tokens 2k and 2k + 1 are twins: their logits differ by the fraction
    `apart`. A verification of several nodes rounds the other way and takes the other twin."""
    monkeypatch.setattr("models.runtime.argmax.has_bfloat16", lambda device: device.type == "cpu")
    exact, screened = HeadArgmax.__call__, []

    def other_twin(self: HeadArgmax, hidden: torch.Tensor) -> torch.Tensor:
        best = exact(self, hidden)
        screened.append(len(hidden))
        return best ^ 1 if len(hidden) > 1 else best

    monkeypatch.setattr(HeadArgmax, "__call__", other_twin)
    folder = make_tiny_base(tmp_path / "twins", tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    table[1::2] = table[0::2] * (1 - apart)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    arguments = ["evaluate", "--model", folder, "--questions", tmp_path / "asked.jsonl", "--max-tokens", "12"]
    assert cli.main([*map(str, arguments), "--draft", "drafter=ngram", "--device", "cpu", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert max(screened) > 1 and result["differences"]
    assert result["identical_to_plain"] is tie and result["ties"] == (len(result["differences"]) if tie else 0)
    assert all((abs(d["gap"]) <= 1e-3) is tie for d in result["differences"])


def test_first_difference_counts_a_missing_token() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_speeds_are_all_tokens_over_all_time() -> None:
    """Two prompts: plain 4 tokens in 40 ms and 4 in 10 ms, drafted 4 in 20 ms and 4 in 5 ms."""

    def run(ms: float, kind: str) -> list[Step]:
        tokens = tuple(EmittedToken(i, "plain") for i in range(2))
        return [Step(0, "prefill", tokens, counted=False, ms_verify=ms / 2), Step(1, kind, tokens, ms_verify=ms / 2)]

    measured = [acceptance.PromptResult("a", "", run(p, "plain"), run(p / 2, "verify")) for p in (40.0, 10.0)]
    result = acceptance_result(measured)
    assert result["plain_tokens_per_second"] == pytest.approx(8 / 0.05)
    assert result["tokens_per_second"] == pytest.approx(8 / 0.025)
    assert result["end_to_end_speedup"] == 2.0
    assert result["mean_accepted_length"] == 2.0


def test_a_stop_between_prompts_is_obeyed(base: LoadedBase) -> None:
    class Stopping(SilentReporter):
        def stop_requested(self) -> bool:
            return True

    with pytest.raises(Cancelled):
        evaluate(base, None, QUESTIONS, Stopping(), max_tokens=4)


def test_a_question_too_long_is_left_out_and_reported(base: LoadedBase) -> None:
    long = {"id": "long", "messages": [{"role": "user", "content": "x " * 600}]}
    result = evaluate(base, None, [*QUESTIONS, long], SilentReporter(), max_tokens=4)
    assert result["skipped"] == ["long"] and result["prompts"] == 3


def test_the_built_in_questions_are_varied_and_not_the_quickstart_prompts() -> None:
    questions = built_in()
    assert len(questions) == 40 and len({q["category"] for q in built_in(8)}) == 8
    texts = {text for q in questions for text in turns(q)[1]}
    prompts = {r["messages"][0]["content"] for r in read_questions(Path(acceptance.__file__).parents[1] / PROMPTS)}
    assert len(prompts) >= 150 and not texts & prompts


PROMPTS = "corpus/quickstart_prompts.jsonl"


def test_questions_come_from_files_and_bad_rows_are_reported(tmp_path: Path) -> None:
    class LogReporter(SilentReporter):
        messages: list[str] = []

        def log(self, message: str, level: str = "info") -> None:
            self.messages.append(message)

    (tmp_path / "q.jsonl").write_text('{"turns": ["one", "two"], "category": "x"}\noops\n')
    (row,) = read_questions(tmp_path / "q.jsonl", None, LogReporter())
    assert turns(row) == ("", ["one", "two"]) and "line 2" in LogReporter.messages[0]


def test_real_benchmark_questions_are_read(shared_data: Path) -> None:
    rows = read_questions(shared_data / "mt_bench" / "question.jsonl", 80)
    assert len(rows) == 80 and {len(turns(r)[1]) for r in rows} == {2}
