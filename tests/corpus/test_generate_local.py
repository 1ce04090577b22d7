"""Batches of any size give the base's own answers with exact ids and spans, and generation resumes where it stopped."""

import json
import random
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from corpus import batch
from corpus.batch import BatchAnswer, answer_all, sample_tokens
from corpus.conversations import GenerateOptions, to_answer
from corpus.generate_local import _LocalRun, generate_local
from corpus.generation_status import GenerationStatus
from corpus.importing import import_prompts
from corpus.shards import ShardWriter, read_rows, read_summary
from models.base import LoadedBase, load_base
from models.chat import render
from models.identity import tokenizer_sha256, weights_sha256
from models.runtime.weights import pack_supported
from speculoos.errors import Cancelled
from speculoos.reporting import SilentReporter
from tests.tiny import make_tiny_base

PROMPTS = [
    "the quick brown fox",
    "1 2 3",
    "a model guesses tokens " * 6,
    "emoji 🦊 and é",
    "x",
    "over the lazy dog",
] * 2


@pytest.fixture(scope="module")
def base(tiny_base: Path) -> LoadedBase:
    return load_base(tiny_base)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return prompt_set(tmp_path, [{"prompt": f"{p} {i}"} for i, p in enumerate(PROMPTS)])


def prompt_set(folder: Path, rows: list[dict]) -> Path:
    (folder / "in.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    import_prompts(folder / "in.jsonl", folder / "prompts", SilentReporter())
    return folder / "prompts"


def generated(base: LoadedBase, prompts: Path, folder: Path, **options: object) -> dict[str, dict]:
    generate_local(base, prompts, folder, GenerateOptions(**{"max_tokens": 12, **options}), SilentReporter())
    return {row["id"]: row for row in read_rows(folder)}


@lru_cache
def untouched(path: Path) -> LoadedBase:
    """A separate base for transformers: generation takes over the weights of the base it uses."""
    return load_base(path)


def reference(base: LoadedBase, ids: list[int], max_tokens: int) -> list[int]:
    """transformers' own greedy answer."""
    base, prompt = untouched(base.path), torch.tensor([ids])
    output = base.model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=sorted(base.eos_ids),
        pad_token_id=0,
    )
    return output[0, len(ids) :].tolist()


@pytest.mark.parametrize("batch_size", [1, 5, 32])
def test_batched_greedy_answers_are_those_of_transformers(
    base: LoadedBase, prompts: Path, tmp_path: Path, batch_size: int
) -> None:
    rows = generated(base, prompts, tmp_path / "out", batch_size=batch_size, max_tokens=40)
    assert len(rows) == len(PROMPTS)
    for row in rows.values():
        user, answer = row["messages"]
        ids = render(base.tokenizer, [user])
        ((start, end),) = row["loss_spans"]
        assert row["token_ids"][:start] == ids and end == len(row["token_ids"])
        assert row["token_ids"][start:] == reference(base, ids, 40)
        assert answer["content"] == base.tokenizer.decode(row["token_ids"][start:], skip_special_tokens=True)
        assert row["finish"] == (["stop"] if row["token_ids"][-1] in base.eos_ids else ["length"])


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "packed"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "phi", "phi3", "gemma2"])
def test_every_family_gives_its_own_answers(tmp_path: Path, family: str, fast: bool) -> None:
    """Also with a sliding window; with our forward pass, and that of transformers if the weights are packed already."""
    extra = {"sliding_window": 16} if family in ("mistral", "gemma2") else {}
    base = load_base(make_tiny_base(tmp_path / family, family, num_hidden_layers=2, **extra))
    if family == "gemma2":  # this one repeats the prompt's last token; line breaks alone would be an empty answer
        base.tokenizer.chat_template = base.tokenizer.chat_template.replace("assistant\n", "assistant:")
    if not fast:
        pack_supported(base)  # gemma 2 is not supported and stays as it is
    prompts = prompt_set(tmp_path, [{"prompt": p} for p in PROMPTS[:6]])
    rows = generated(base, prompts, tmp_path / "out", batch_size=3, max_tokens=24)
    assert base.forward.name == ("fast" if fast and family != "gemma2" else "transformers")
    for row in rows.values():
        ((start, _end),) = row["loss_spans"]
        assert row["token_ids"][start:] == reference(base, row["token_ids"][:start], 24)


def test_later_turns_follow_the_exact_ids_of_earlier_answers(base: LoadedBase, tmp_path: Path) -> None:
    prompts = prompt_set(tmp_path, [{"turns": ["the quick", "brown fox", "lazy dog"], "category": "x"}])
    (row,) = generated(base, prompts, tmp_path / "out", system_prompt="be kind").values()
    assert [m["role"] for m in row["messages"]] == ["system", *["user", "assistant"] * 3]
    assert len(row["loss_spans"]) == 3 and row["category"] == "x"
    for number, (start, end) in enumerate(row["loss_spans"]):
        assert row["token_ids"][start:end] == reference(base, row["token_ids"][:start], 12)
        answer = row["messages"][2 + 2 * number]["content"]
        assert base.tokenizer.decode(row["token_ids"][start:end], skip_special_tokens=True) == answer
    text = base.tokenizer.decode(row["token_ids"])
    between = "<|im_end|>\n<|im_start|>user\nbrown fox<|im_end|>\n<|im_start|>assistant\n"
    assert text.count(between) == 1, "the template between two turns is not what the template writes"
    assert text.count("<|im_end|>") == 1 + 3 + 2 + (row["finish"][-1] == "stop")


def test_sampled_answers_belong_to_the_row_not_to_the_batch(base: LoadedBase, prompts: Path, tmp_path: Path) -> None:
    options = {"temperature": 0.8, "top_p": 0.9, "seed": 7}
    one = generated(base, prompts, tmp_path / "a", batch_size=1, **options)
    many = generated(base, prompts, tmp_path / "b", batch_size=6, **options)
    other = generated(base, prompts, tmp_path / "c", batch_size=6, **{**options, "seed": 8})
    assert one == many
    assert one != other


def test_a_stop_keeps_finished_rows_and_the_rest_follows(base: LoadedBase, prompts: Path, tmp_path: Path) -> None:
    class Stopping(SilentReporter):
        done = 0

        def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
            self.done = done

        def stop_requested(self) -> bool:
            return self.done >= 3

    options = GenerateOptions(max_tokens=12, batch_size=2)
    with pytest.raises(Cancelled):
        generate_local(base, prompts, tmp_path / "out", options, Stopping())
    before = [row["id"] for row in read_rows(tmp_path / "out")]
    assert 3 <= len(before) < len(PROMPTS) and read_summary(tmp_path / "out") == {}
    report = generate_local(base, prompts, tmp_path / "out", options, SilentReporter())
    after = [row["id"] for row in read_rows(tmp_path / "out")]
    assert after[: len(before)] == before and len(set(after)) == len(after) == len(PROMPTS) == report["rows"]
    assert {r["id"]: r for r in read_rows(tmp_path / "out")} == generated(base, prompts, tmp_path / "fresh")


def test_the_clock_ends_a_run_and_what_is_finished_can_be_used(base: LoadedBase, prompts: Path, tmp_path: Path) -> None:
    options = GenerateOptions(max_tokens=12, max_minutes=0.0)
    report = generate_local(base, prompts, tmp_path / "out", options, SilentReporter())
    assert not report["complete"] and report["rows"] < len(PROMPTS)
    assert read_summary(tmp_path / "out")["complete"] is False


def test_a_prompt_that_does_not_fit_is_reported_and_the_rest_is_answered(base: LoadedBase, tmp_path: Path) -> None:
    prompts = prompt_set(tmp_path, [{"prompt": "x " * 600}, {"prompt": "short"}])
    options = GenerateOptions(max_tokens=4)
    report = generate_local(base, prompts, tmp_path / "out", options, SilentReporter())
    assert report["rows"] == 1 and report["failed"][0]["id"] == "line-0000001"
    assert "this base takes 512" in report["failed"][0]["reason"]


def test_the_dataset_records_its_base_and_tokenizer(base: LoadedBase, prompts: Path, tmp_path: Path) -> None:
    report = generate_local(base, prompts, tmp_path / "out", GenerateOptions(max_tokens=4, limit=3), SilentReporter())
    summary = read_summary(tmp_path / "out")
    assert summary["base_sha256"] == weights_sha256(base.path)
    assert summary["tokenizer_sha256"] == tokenizer_sha256(base.path)
    assert summary["kind"] == "conversations" and summary["rows"] == report["rows"] == 3
    assert summary["config"]["max_tokens"] == 4 and report["dtype"] == "float32"


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    drawn = {sample_tokens(logits, [u / 200], 1.0, 0.75)[0] for u in range(200)}
    assert drawn == {0, 1}
    assert sample_tokens(logits, [0.61], 1.0, 0.75) == [0] and sample_tokens(logits, [0.63], 1.0, 0.75) == [
        1
    ]  # 0.5 / 0.8 = 0.625
    assert sample_tokens(logits, [0.96], 1.0, 1.0) == [3] and sample_tokens(logits, [0.96], 0.0, 1.0) == [0]


@pytest.mark.parametrize("size", [7, 300, 1024])
def test_draws_from_all_tokens_follow_their_probabilities(size: int) -> None:
    """Evenly spaced draws give each token its probability, up to one draw per edge, and never a token of probability 0,
    even at the ends of the interval."""
    logits = 3 * torch.randn(1, size, generator=torch.Generator().manual_seed(size))
    logits[0, [0, size - 1]] = -1e9
    count = 20_000
    draws = [(i + 0.5) / count for i in range(count)]
    tokens = torch.tensor(sample_tokens(logits.expand(count, -1), draws, 0.7, 1.0))
    expected = torch.softmax(logits[0].double() / 0.7, dim=-1)
    assert (torch.bincount(tokens, minlength=size) / count - expected).abs().max() <= 1.01 / count
    assert sample_tokens(logits, [0.0], 0.7, 1.0) == [1]
    assert sample_tokens(logits, [1 - 2**-53], 0.7, 1.0) == [size - 2]


def test_answers_that_the_clock_cut_short_are_kept_from_16_tokens_on(base: LoadedBase, tmp_path: Path) -> None:
    """Ten answers stopped after the 20th forward pass are prefixes of the complete answers, without a further turn."""

    class Clock(SilentReporter):
        forwards = 0

        def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
            Clock.forwards += 1
            if Clock.forwards == 20:
                run.status._started -= 3600

    prompts = prompt_set(tmp_path, [{"turns": [f"number {i}", "and then?"]} for i in range(10)])
    options = GenerateOptions(max_tokens=400, batch_size=16, max_minutes=30)
    with ShardWriter(tmp_path / "out") as shards:
        clock = Clock()
        run = _LocalRun(base, options, clock, GenerationStatus(clock, shards, options, 10))
        run.run(to_answer(prompts, options, set()))
    rows = list(read_rows(tmp_path / "out"))
    assert not run.status.complete and len(rows) == 10
    for row in rows:
        start, end = row["loss_spans"][0]
        tokens = row["token_ids"][start:end]
        assert tokens == reference(base, row["token_ids"][:start], len(tokens)) and end == len(row["token_ids"])
        assert [m["role"] for m in row["messages"]] == ["user", "assistant"] and row["finish"] == ["length"]


def test_a_shared_prefix_is_computed_once_and_changes_no_answer(base: LoadedBase, monkeypatch) -> None:
    """Three samples of two prompts that share a system prompt: the first prompt is computed in full, then the rest of
    the second, then only the last token of each further sample."""
    system = list(range(3, 43))
    prompts = [system + [50, 51, 52, 53] * 5, system + [60, 61, 62] * 7]
    alone = {}
    for number, prompt in enumerate(prompts):
        ((alone[number],),) = [finished for finished, _ in answer_all(base, once([answer(prompt)]), 1) if finished]
    computed: list[int] = []
    forward = batch._Batch._forward

    def counted(self, texts, first, answers):
        computed.extend(map(len, texts) if max(map(len, texts)) > 1 or first else [])
        forward(self, texts, first, answers)

    monkeypatch.setattr(batch._Batch, "_forward", counted)
    requests = [answer(prompt, number) for prompt in prompts for number in range(3)]
    finished = [result for results, _ in answer_all(base, once(requests), 8) for result in results]
    assert sorted(computed) == [1, 1, 1, 1, 21, 60]
    assert len(finished) == 6 and all(
        result.tokens == alone[prompts.index(result.prompt)].tokens for result in finished
    )


def test_a_long_answer_leaves_room_for_the_prompts_beside_it(base: LoadedBase) -> None:
    """The cache is as long as one sequence may be; the length of another prompt is not added to the longest."""
    longest = answer([5] * (base.max_length - 4), tokens=3)
    waiting = [[longest], [answer([7] * (base.max_length // 2))]]
    finished = [
        result
        for results, _ in answer_all(base, lambda _count: waiting.pop(0) if waiting else [], 2)
        for result in results
    ]
    assert len(finished) == 2


def answer(prompt: list[int], tag: object = None, tokens: int = 12) -> BatchAnswer:
    return BatchAnswer(prompt, tokens, random.Random(0), tag)


def once(answers: list[BatchAnswer]):
    return lambda count: [answers.pop(0) for _ in answers[:count]]
