"""Evaluation suites: names, titles, file formats and locations on the Hugging Face Hub."""

from dataclasses import dataclass

BUILT_IN_SUITE_NAME, OWN_SUITE_NAME = "built_in", "own"


@dataclass(frozen=True)
class Suite:
    """One suite. `form` describes its file; `hub` is (dataset, file) on the Hub, or None."""

    name: str
    title: str
    form: str
    hub: tuple[str, str] | None = None


TURNS = "`turns`, a list of texts"
QUESTIONS = f"question.jsonl: `question_id`, `category` and {TURNS}"
TASKS = f"question.jsonl: `question_id`, `category` of one of the six tasks, and {TURNS}"
CODE = f"HumanEval.jsonl(.gz): `task_id` and `prompt`; or a file with {TURNS}"
ANSWERS = f"test.jsonl: `question` and `answer`; or a file with {TURNS}"
KNOWN = (
    Suite("mt_bench", "MT-Bench", QUESTIONS, ("HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl")),
    Suite("humaneval", "HumanEval", CODE, ("openai/openai_humaneval", "openai_humaneval/test-00000-of-00001.parquet")),
    Suite("gsm8k", "GSM8K", ANSWERS, ("openai/gsm8k", "main/test-00000-of-00001.parquet")),
    Suite("spec_bench", "Spec-Bench", TASKS),
)
SUITES = {suite.name: suite for suite in KNOWN}
"""Suites that are imported from a file. The built-in questions and any prompt set can be used as suites too."""


def suite_title(name: str) -> str:
    """`mt_bench` → "MT-Bench"; "" for a user's own prompt set, which has a name."""
    if name == BUILT_IN_SUITE_NAME:
        return "Built-in questions"
    return SUITES[name].title if name in SUITES else ""
