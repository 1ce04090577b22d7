"""Comparison of a draft in this engine and in a server."""

import pytest

from evaluation.agreement import agreement, chain


def result(rates, tau, *, steps=500, identical=True, interval=None):
    """An evaluation's result with these rates given an accepted parent."""
    figures = {
        "mean_accepted_length": tau,
        "acceptance_by_depth": rates,
        "tokens": round((tau or 0) * steps),
        "prompts": 8,
    }
    figures |= {"tokens_per_second": 50.0, "plain_tokens_per_second": 30.0, "identical_to_plain": identical}
    return figures | ({"mean_accepted_length_interval": interval} if interval else {})


def test_nearly_equal_rates_agree():
    """The figures of the starter's head in vLLM: 210/94/55 of 498 steps there, 208/93/54 of 496 here."""
    here = result([208 / 496, 93 / 208, 54 / 93], 1.716, steps=496)
    there = result([210 / 498, 94 / 210, 55 / 94], 1.721, steps=498)
    comparison = agreement(here, there, "vLLM 0.32.0")
    assert comparison["agrees"] is True
    assert [position["here"] for position in comparison["positions"]] == pytest.approx(
        [0.4194, 0.1875, 0.1089], abs=1e-4
    )
    assert comparison["verdict"] == (
        "Acceptance in vLLM 0.32.0 matches this engine: τ 1.72 in the server, 1.72 in this engine; texts equal those "
        "without the draft."
    )


def test_layers_off_by_one_are_found():
    comparison = agreement(result([0.42, 0.45], 1.61), result([0.10, 0.1], 1.11), "vLLM 0.32.0")
    assert comparison["agrees"] is False
    assert [position["agrees"] for position in comparison["positions"]] == [False, False]
    assert comparison["verdict"].startswith(
        "Acceptance in vLLM 0.32.0 differs from this engine: τ 1.11 in the server, 1.61 in this engine. Likely causes:"
    )


def test_a_server_that_accepts_nothing_does_not_draft():
    comparison = agreement(result([0.42], 1.42), result([0.0], 1.0), "SGLang 0.5")
    assert comparison["agrees"] is False
    assert comparison["verdict"].startswith("SGLang 0.5 accepted no draft token, but τ is 1.42")


def test_few_steps_have_a_wide_tolerance():
    few = agreement(result([0.42], 1.42, steps=20), result([0.30], 1.30, steps=20), "x")
    many = agreement(result([0.42], 1.42, steps=2000), result([0.30], 1.30, steps=2000), "x")
    assert (few["agrees"], many["agrees"]) == (True, False)
    assert few["positions"][0]["tolerance"] > many["positions"][0]["tolerance"] >= 0.02


def test_totals_alone_are_compared_by_their_intervals():
    """llama.cpp publishes totals only."""
    here = result([0.42], 1.72, interval=[1.6, 1.9])
    same = result([], 1.8, interval=[1.7, 1.95], identical=None)
    other = result([], 1.2, interval=[1.1, 1.3])
    assert agreement(here, same, "llama.cpp")["agrees"] is True
    assert (
        agreement(here, same, "llama.cpp")["verdict"]
        == "Acceptance in llama.cpp matches this engine: τ 1.80 in the server, 1.72 in this engine."
    )
    assert agreement(here, other, "llama.cpp")["agrees"] is False


def test_a_server_without_figures_gives_no_verdict():
    comparison = agreement(result([0.42], 1.72), result([], None), "x")
    assert comparison["agrees"] is None
    assert "so it cannot be compared" in comparison["verdict"]


def test_chain():
    assert chain(3) == [[0], [0, 0], [0, 0, 0]]
