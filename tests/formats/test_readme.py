"""The README of an export escapes names and notes: in Markdown, in shell commands, in Python and in YAML."""

import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from formats import FORMATS, serve
from formats.checkpoint import CheckpointFiles
from formats.export import build_export
from formats.facts import CardFacts
from formats.readme import readme
from formats.report import ExportReport
from models.checkpoints import read_config, update_draft_config
from models.starter import STARTER_HUB_ID
from tests.formats.commands import check

NAME = "he`ads` <script>alert(1)</script> $(touch marker) \n# Title\n```\n| cell | ' \" \\ _x_ [a](b)"
FOLDER = 'it\'s $(touch marker) `touch marker` "q"; touch marker #```'
STUBS = (
    "vllm",
    "python",
    "curl",
    "git",
    "hf",
    "trtllm-serve",
    "trtllm-build",
    "text-generation-launcher",
    "cat",
    "touch",
    "speculoos",
    "llama-server",
)
RECORD = '#!/bin/sh\nfor word in "$0" "$@"; do printf "%s\\n" "$word"; done >> "$RECORD"\n'


@pytest.fixture
def readme_of(base, checkpoint, tmp_path: Path):
    """(kind, format) → the README of an export whose folder, names and notes contain special characters."""

    def make(kind: str, name: str) -> str:
        folder = checkpoint(kind)
        config = read_config(folder)
        training = {"notes": f"{NAME}\n- x\n<b>", "dataset": {"name": NAME}, "settings": {NAME: NAME}}
        update_draft_config(folder, training={**config.get("training", {}), **training})
        facts = CardFacts(NAME, NAME, licence="mit <i>", checkpoint=NAME, measured={NAME: NAME})
        build_export(folder, base, name, tmp_path / FOLDER, facts=facts)
        return (tmp_path / FOLDER / "README.md").read_text()

    return make


def tokens(markdown: str):
    body = markdown.split("---\n", 2)[2]
    return MarkdownIt("commonmark", {"html": True}).enable("table").parse(body)


EXPORTS = [("eagle3-residual", "vllm"), ("eagle3-residual", "speculators"), ("eagle3", "sglang"), ("eagle3", "trtllm"),
         ("peagle", "vllm"), ("medusa", "trtllm"), ("medusa", "medusa"), ("draft", "huggingface"),
         ("eagle3", "gguf-f16")]  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize(("kind", "name"), EXPORTS)
def test_names_and_notes_are_escaped_in_text_and_commands(kind: str, name: str, readme_of, tmp_path: Path) -> None:
    markdown = readme_of(kind, name)
    parsed = tokens(markdown)
    inline = [child for token in parsed for child in token.children or ()]
    assert not [
        t for t in (*parsed, *inline) if t.type in ("html_block", "html_inline", "link_open", "image", "em_open")
    ]
    headings = [parsed[at + 1].content for at, token in enumerate(parsed) if token.type == "heading_open"]
    allowed = {"Serve", "Base", "Data", "Recipe", "Notes", "Validation", "License", "Figures"}
    allowed |= {"vLLM", "SGLang", "TensorRT-LLM", "Measured"}
    assert {*headings[1:]} <= allowed and headings[0].startswith(("Medusa", "EAGLE", "P-EAGLE", "Standalone"))
    assert "alert(1)" in markdown and "Title" in markdown, "they are shown"
    front = yaml.safe_load(markdown.split("---\n")[1])
    assert {"speculative-decoding", name} <= {*front["tags"]} and "license" not in front

    blocks = {token.info: token.content for token in parsed if token.type == "fence"}
    assert {*blocks} <= {"sh", "python", "yaml"} and "sh" in blocks
    for content in (token.content for token in parsed if token.type == "fence" and token.info == "sh"):
        recorded = run(content, tmp_path)
        assert not (tmp_path / "marker").exists() and "touch" not in {Path(argument).name for argument in recorded}
    commands = "\n".join(token.content for token in parsed if token.type == "fence" and token.info == "sh")
    if name in ("sglang", "speculators", "medusa"):
        assert f"./{FOLDER}" in shlex.split(commands.split("Try it")[0].replace("\\\n", " "))
    if "yaml" in blocks:
        assert yaml.safe_load(blocks["yaml"])["speculative_config"]["speculative_model"] == f"./{FOLDER}"
    if "python" in blocks:
        assert repr(f"./{FOLDER}") in map(repr, literals(blocks["python"]))


def run(script: str, folder: Path) -> list[str]:
    """Run a shell script with stubs for all commands, and return every argument of every command."""
    stubs, record = folder / "stubs", folder / "recorded"
    stubs.mkdir(exist_ok=True)
    for name in STUBS:
        (stubs / name).write_text(RECORD)
        (stubs / name).chmod(0o755)
    record.unlink(missing_ok=True)
    completed = subprocess.run(
        ["/bin/sh", "-c", script], cwd=folder, env={"PATH": str(stubs), "RECORD": str(record)}, capture_output=True
    )
    assert completed.returncode == 0, completed.stderr
    return record.read_text().splitlines()


def literals(program: str) -> list[str]:
    import ast

    return [n.value for n in ast.walk(ast.parse(program)) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def test_the_card_of_a_checkpoint_shows_its_notes_as_they_are(base, checkpoint) -> None:
    folder = checkpoint("medusa")
    update_draft_config(folder, base=NAME, training={"notes": NAME, "source": {"origin": NAME}})
    markdown = (folder / "README.md").read_text()
    parsed = tokens(markdown)
    inline = [child for token in parsed for child in token.children or ()]
    assert not [t for t in (*parsed, *inline) if t.type in ("html_block", "html_inline", "link_open", "em_open")]
    assert not re.search(r"^# Title", markdown, re.MULTILINE) and "alert(1)" in markdown and os.linesep in markdown


@pytest.mark.parametrize(("kind", "command"), [("eagle3", serve.sglang), ("medusa", serve.trtllm)])
def test_a_draft_kept_in_fp32_is_served_in_the_precision_of_its_base(kind: str, command, base, checkpoint) -> None:
    files = CheckpointFiles.read(checkpoint(kind), base.path)
    assert files.dtype == "float32"
    half = {name: replace(entry, dtype="BF16") for name, entry in files.base_tensors.items()}
    assert "--dtype bfloat16" in command(replace(files, base_tensors=half), CardFacts("b", "org/base"), "heads")
    assert "--dtype bfloat16" in command(files, CardFacts("b", "org/base"), "heads"), "no server's kernels take float32"
    float16 = {name: replace(entry, dtype="F16") for name, entry in files.base_tensors.items()}
    assert "--dtype float16" in command(replace(files, base_tensors=float16), CardFacts("b", "org/base"), "heads")


@pytest.mark.parametrize(
    ("source", "location", "base_name"),
    [
        ("hub", "org/base", "org/base"),
        ("folder", "/somewhere", "PATH_OF_THE_BASE"),
        ("starter", STARTER_HUB_ID, STARTER_HUB_ID),
    ],
)
def test_commands_and_requests_name_the_base_alike_whatever_it_came_from(
    source: str, location: str, base_name: str, base, checkpoint, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "medusa_choices.json").write_text("[[0]]")
    (tmp_path / "out" / "draft-f16.gguf").touch()
    for kind, name in EXPORTS:
        files, facts = CheckpointFiles.read(checkpoint(kind), base.path), CardFacts("my base", location, source)
        markdown = readme(FORMATS[name], files, facts, ExportReport(name, files.method, "", ()), "out")
        assert check(markdown, tmp_path, base_name)
        assert ("quantized copy" in markdown) == (source == "starter") and ("base_model: " in markdown) == (
            source != "folder"
        )


def loads(*speedups: float) -> dict:
    """Like the result of `tracking.evaluations.measured_loads`: vLLM at 1, 4 and 16 requests, with two draft tokens."""
    depths = {"acceptance_by_depth": [0.7, 0.5], "tokens_per_second": 100.0}
    each = [
        {"concurrency": 4**n, "drafted": depths, "speedup": value, "speedup_interval": [value - 0.05, value + 0.05]}
        for n, value in enumerate(speedups)
    ]
    return {"loads": each, "server": "vLLM", "tokens": 2, "date": "2026-11-26"}


def test_measured_loads_set_the_draft_tokens_of_that_server(base, checkpoint, tmp_path: Path) -> None:
    files = CheckpointFiles.read(checkpoint("eagle3"), base.path)
    (tmp_path / "out").mkdir()

    def rendered(measured: dict, name: str = "vllm") -> str:
        text = readme(
            FORMATS[name],
            files,
            CardFacts("b", "org/base", "hub", loads=measured),
            ExportReport(name, "eagle3", "", ()),
            "out",
        )
        assert check(text, tmp_path, "org/base")
        return text

    slower = rendered(loads(1.5, 1.2, 0.8))
    assert '"num_speculative_tokens": 2, "num_speculative_tokens_per_batch_size": [[1, 4, 2], [16, 16, 0]]' in slower
    assert "is written as vLLM 0.32 reads it" in slower
    assert "is slower at 16 concurrent requests" in slower and "1.20 × (1.15 to 1.25 at 95 %), 100.0 tokens/s" in slower
    for pays in ((1.5, 1.2, 1.1), (1.5, 1.2, 1.0), (0.8, 0.7, 0.6)):
        text = rendered(loads(*pays))
        assert '"num_speculative_tokens": 2}' in text and "per_batch_size" not in text and "## By load" in text
    assert "per_batch_size" not in rendered({}) and "## By load" not in rendered({})
    elsewhere = rendered({**loads(1.5, 0.8), "server": "llama.cpp"})
    assert "per_batch_size" not in elsewhere and "on llama.cpp, 2026-11-26" in elsewhere
    odd = rendered({**loads(1.5), "server": NAME, "tokens": 0})
    assert "<script>" not in odd


def test_measured_tokens_are_at_most_those_of_a_block(base, checkpoint) -> None:
    files = CheckpointFiles.read(checkpoint("dflash"), base.path)
    facts = CardFacts("b", "org/base", "hub", loads={**loads(1.5), "tokens": 30})
    assert serve.served_tokens(files, facts, "vLLM")[0] == files.config["block_size"] - 1


@pytest.mark.parametrize("tree", ["chain 4", [1, 2], 7, {"a": 1}])
def test_an_odd_tree_of_a_third_party_does_not_break_the_commands(tree, base, checkpoint) -> None:
    for kind in ("medusa", "dflash", "eagle3"):
        files = CheckpointFiles.read(checkpoint(kind), base.path)
        odd, untuned = (replace(files, config={**files.config, "drafting": d}) for d in ({"tree": tree}, {}))
        facts = CardFacts("b", "org/base", "hub")
        for record in filter(lambda each: each.layout(kind), FORMATS.values()):
            assert record.serve(odd, facts, "out") == record.serve(untuned, facts, "out")
        assert "its longest path has" in serve.measured(odd)


def test_vllm_takes_the_schedule_for_all_batch_sizes() -> None:
    """As `build_dynamic_sd_schedule_lookup` of vLLM 0.32 expands it: gaps and the end continue the last range."""
    schedule, dense, last = serve.tokens_by_load(3, loads(1.5, 1.2, 0.8)["loads"]), {}, 0
    assert schedule[0][0] == 1
    for size in range(1, 33):
        last = next((tokens for first, end, tokens in schedule if first <= size <= end), last)
        dense[size] = last
    assert [dense[size] for size in (1, 4, 5, 15, 16, 17, 32)] == [3, 3, 3, 3, 0, 0, 0]


def test_the_readme_states_the_result_of_a_tuning(base, checkpoint) -> None:
    files = CheckpointFiles.read(checkpoint("medusa"), base.path)
    rest = {key: value for key, value in files.config.items() if key not in ("drafting", "tuning")}
    assert "was not tuned" in serve.measured(replace(files, config=rest))
    plain = serve.measured(replace(files, config={**rest, "drafting": {}, "tuning": {"verdict": "Plain is faster."}}))
    assert "found plain decoding fastest (Plain is faster)" in plain and "not tuned" not in plain
    shallow = serve.measured(replace(files, config={**rest, "drafting": {"tree": [[0], [1], [2]]}}))
    assert "its longest path has 1 token." in shallow
