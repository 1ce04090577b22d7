"""Dry run of the GPU check: every part runs on the CPU with tiny shapes, and faults are reported."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check, gpu_exactness
from benchmarks.exactness import Reference, reference
from benchmarks.gpu_exactness import Bench, Claim, follow_reference
from benchmarks.report import replace_between
from decoding.drafters import make_drafter
from decoding.drafters.base import Drafter
from decoding.target import Target
from models.base import load_base
from tests.tiny import FAMILIES

CPU = torch.device("cpu")
ROUNDING = 2**-4
"""Two rounding steps of bf16 logits from 4 to 8."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(CPU, tmp_path, time.monotonic() + 60, dry=True)


@pytest.mark.integration
def test_every_part_runs_dry_and_its_output_is_exact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One family for each rule of logits; tests/decoding/test_exactness.py runs all."""
    few = {name: FAMILIES[name] for name in ("llama", "phi", "granite", "gemma2")}
    monkeypatch.setattr(gpu_exactness, "FAMILIES", few)

    def beyond_rounding(target: Target, drafter: Drafter, expected: Reference) -> tuple[int, list[float]]:
        tokens, gaps = follow_reference(target, drafter, expected)
        return tokens, [gap for gap in gaps if gap > ROUNDING]

    # 2 of the 32 tokens would be too many, and how nearly equal logits are rounded depends on the CPU
    monkeypatch.setattr(gpu_exactness, "follow_reference", beyond_rounding)
    page, out = gpu_check.PAGE.read_text(encoding="utf-8"), tmp_path / "gpu.json"
    status = gpu_check.main(["--dry-run", "--json", str(out)])
    output = capsys.readouterr().out
    assert status == 0, output
    result = json.loads(out.read_text())
    assert [part["name"] for part in result["parts"]] == [*gpu_check.PARTS]
    assert all(part["ran"] and part["peak_mib"] > 0 for part in result["parts"])
    holds = {claim["name"]: claim["holds"] for claim in result["claims"]}
    judged = [name for name, value in holds.items() if value is not None]
    assert all(holds[name] for name in judged)
    assert sum(name.startswith("fp32") for name in judged) == 10 + 1 and sum(n.startswith("bf16") for n in judged) == 10
    assert sum(value is None for value in holds.values()) == 7, "speed, capture, launches and more GPUs are not judged"
    assert all(name in output for name in holds)
    assert gpu_check.PAGE.read_text(encoding="utf-8") == page, "a dry run writes no page"


def test_a_part_that_fails_is_a_claim_that_does_not_hold_and_the_others_go_on(bench: Bench) -> None:
    def fails(_bench: Bench) -> None:
        raise RuntimeError("CUDA error: no kernel | image\nand more")

    reports = gpu_check.check(bench, {"one": fails, "two": lambda bench: bench.figures.update({"tokens/s": 7})})
    assert bench.claims == [
        Claim("one runs to its end", "no error", "RuntimeError: CUDA error: no kernel / image", False)
    ]
    assert reports[0]["ran"] and reports[1]["figures"] == {"tokens/s": 7}


def test_parts_after_the_deadline_are_reported_as_not_run(bench: Bench) -> None:
    bench.deadline = time.monotonic() - 1
    reports = gpu_check.check(bench, {"one": lambda _bench: pytest.fail("it ran")})
    gpu_check.claim_in_time(bench, reports, 660, 10)
    assert not reports[0]["ran"] and bench.claims[-1].holds is False
    assert bench.claims[-1].figure == "0 of 1 in 11.0 minutes; not: one"


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # in case the machine has a GPU
    assert gpu_check.main([]) == 2
    assert capsys.readouterr().err.strip() == gpu_check.NO_GPU


def test_a_claim_that_does_not_hold_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(bench: Bench) -> None:  # claims of a slow GPU
        bench.claim("plain decoding", "≥ 4 ×", "3.1 ×", False)
        bench.claim("tokens", "all", "all", True)

    monkeypatch.setattr(gpu_check, "PARTS", {"speed": slow})
    assert gpu_check.main(["--dry-run"]) == 1
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "Does not hold: plain decoding (wanted ≥ 4 ×): 3.1 ×"
    assert "| plain decoding | ≥ 4 × | 3.1 × | **no** |" in output


def test_the_page_has_the_marks_between_which_figures_go() -> None:
    text = gpu_check.PAGE.read_text(encoding="utf-8")
    page = replace_between(text, gpu_check.BEGIN, gpu_check.END, "figures")
    assert f"{gpu_check.BEGIN}\nfigures\n{gpu_check.END}" in page
    assert page.partition(gpu_check.BEGIN)[0] == text.partition(gpu_check.BEGIN)[0]
    assert page.partition(gpu_check.END)[2] == text.partition(gpu_check.END)[2]


def test_agreement_counts_each_token_that_differs_and_goes_on_from_the_reference(bench: Bench, tiny_base: Path) -> None:

    base = load_base(tiny_base)
    base.eos_ids = frozenset()
    expected = reference(base, base.tokenizer("the quick brown fox")["input_ids"], 8)
    target = Target(base, 64)
    assert follow_reference(target, make_drafter(target), expected) == (8, [])
    other = replace(expected, tokens=[*expected.tokens[:7], (expected.tokens[7] + 1) % 300])
    assert follow_reference(target, make_drafter(target), other) == (8, [expected.gaps[7]])
