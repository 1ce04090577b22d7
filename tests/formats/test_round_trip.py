"""Every kind of draft in every format. Either the format takes it: then an independent reader of the files drafts the
same tokens, and an import restores the same tensors, network and drafted tokens. Or one sentence gives the reason and
nothing is written."""

import json
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.target import Target
from formats import find_format
from formats.checkpoint import CheckpointFiles
from formats.export import build_export
from formats.imports.run import Conversion
from formats.imports.work import convert
from formats.options import export_options
from formats.report import ExportReport
from models.chat import render
from models.checkpoints import load_draft, read_config
from speculoos.checksums import find_changed_files, read_checksums
from speculoos.errors import Unsupported
from tests.formats.commands import check
from tests.formats.conftest import DRAFT_KINDS
from tests.formats.table import check_table

EAGLE3 = {"vllm", "speculators", "sglang", "trtllm", "modelopt"}
NEWER = {"vllm", "speculators"}
TAKES = {
    "eagle": {"vllm", "sglang"},
    "eagle3": EAGLE3 | {"gguf"},
    "eagle3-small": EAGLE3 | {"gguf"},
    "eagle3-residual": NEWER | {"gguf"},
    "eagle-biased": {"sglang"},
    "eagle-scaled": {"vllm", "sglang"},
    "eagle3-scaled": EAGLE3 | {"gguf"},
    "eagle-own": {"vllm"},
    "eagle3-fused-norm": NEWER | {"sglang", "trtllm"},
    "eagle3-each-norm": NEWER | {"sglang", "trtllm"},
    "eagle3-joined-norm": NEWER | {"sglang", "trtllm", "gguf"},
    "eagle3-deep": NEWER,
    "eagle3-four": EAGLE3 - {"speculators"},
    "eagle3-narrow": {"vllm", "gguf"},
    "peagle": NEWER,
    "peagle-deep": {"vllm"},
    "medusa": {"vllm", "trtllm", "medusa"},
    "medusa-shared": {"vllm", "trtllm", "medusa"},
    "medusa-small": set(),
    "dflash": {"vllm", "speculators", "sglang", "huggingface", "gguf"},
    "dflash-small": {"vllm", "speculators", "gguf"},
    "dflash-biased": {"vllm", "speculators", "sglang"},
    "draft": {"huggingface", "gguf"},
    "draft-narrow": {"huggingface", "gguf"},
}
"""Beside `own`, which takes all."""
RUN = "python TensorRT-LLM/examples/run.py"
ENGINE = ["git clone", "python TensorRT-LLM/examples/medusa/convert_checkpoint.py", "trtllm-build", RUN]
SGLANG = "python -m sglang.launch_server"
SERVED_BY = {
    **{"vllm": ["vllm serve"], "speculators": ["vllm serve"], "sglang": [SGLANG]},
    **{"medusa": ["text-generation-launcher"], "modelopt": ["trtllm-serve", SGLANG]},
    "gguf": ["speculoos models gguf", "llama-server"],
    **{"huggingface": ["transformers", "vllm serve", SGLANG, "trtllm-serve"]},
}
"""Programs in the README of a format, in this order: every server that the format is said to be for."""
HALF = ("eagle", "eagle3", "eagle3-small", "medusa", "dflash-small", "draft")
"""Of each method one, and those with a map of the vocabulary: a type is cast alike in every tensor."""
IGNORED_KEYS = {"training", "base", "base_sha256", "speculoos_format", "_name_or_path"}


def drafted(folder, base):
    """The steps of a generation with this draft: the drafted and the accepted tokens."""
    target = Target(base, max_length=128)
    drafter = make_drafter(target, load_draft(folder, base))
    prompt = render(base.tokenizer, [{"role": "user", "content": "the quick brown fox"}])
    steps = generate(target, drafter, prompt, GenerateConfig(max_tokens=8))
    return [json.loads(json.dumps({k: v for k, v in s.record().items() if "ms" not in k})) for s in steps]


@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, "float32") for kind in DRAFT_KINDS), *((kind, "bfloat16") for kind in HALF)]
)
def test_a_draft_is_exported_drafts_the_same_and_is_imported_again(kind, dtype, base, checkpoint, tmp_path):
    folder = checkpoint(kind, dtype)
    expected = drafted(folder, base) if dtype == "float32" else None
    for option in export_options(folder, base.path):
        if find_format(option.name).scheme:  # test_quantized.py
            continue
        target = tmp_path / option.name
        assert option.possible == (option.name == "own" or option.name in TAKES[kind]), (option.name, option.reason)
        if not option.possible:
            with pytest.raises(Unsupported) as error:
                build_export(folder, base, option.name, target)
            assert str(error.value) == option.reason and not target.exists()
            continue
        report = build_export(folder, base, option.name, target)
        assert report.passed, report.failures
        assert not find_changed_files(target)
        if option.name != "own":
            check_folder(target, report, option.name)
            if option.name != "gguf":  # test_gguf.py
                check_table(target, option.name, CheckpointFiles.read(folder, base.path))
                if expected is not None:
                    check_import(folder, target, option, base, tmp_path)
                    assert drafted(tmp_path / f"import-{option.name}" / "draft", base) == expected
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")], "something half-made stayed"


def check_folder(target, report, name):
    """Check the report, the checksums of every file, and the commands of the README."""
    assert ExportReport.from_json(json.loads((target / "validation.json").read_text())) == report
    assert {*read_checksums(target)} == {p.name for p in target.iterdir()} - {"SHA256SUMS"}
    assert report.figures["largest_relative_difference"] <= 1e-4 and report.figures["drafted"] >= 18
    readme = (target / "README.md").read_text()
    programs = [program for program in check(readme, target.parent, "PATH_OF_THE_BASE") if program != "curl"]
    expected = SERVED_BY.get(name, ENGINE if report.method == "medusa" else ["trtllm-serve"])
    assert programs == (["transformers"] if (report.method, name) == ("dflash", "huggingface") else expected)
    assert report.subject["tokenizer_sha256"] in readme


def check_import(folder, target, option, base, tmp_path):
    """Check the size that the option gives, and import the export into `tmp_path/import-<name>/draft`."""
    config, stored = read_config(folder), load_file(folder / "model.safetensors")
    sizes = [path.stat().st_size for path in target.iterdir() if path.suffix in (".safetensors", ".pt")]
    assert option.bytes <= sum(sizes) <= option.bytes + 32_768 * len(sizes), option.name
    (scratch := tmp_path / f"import-{option.name}").mkdir()
    convert(asdict(Conversion(str(target), str(scratch), str(base.path), option.name, "", "tiny", "", "")))
    tensors, imported = load_file(scratch / "draft" / "model.safetensors"), read_config(scratch / "draft")
    split = bool(config.get("medusa_tie_lm_head")) and not imported["medusa_tie_lm_head"]
    if split:
        heads = [tensors.pop(f"lm_heads.{head}.weight") for head in range(imported["medusa_num_heads"])]
        shared = stored.pop("lm_heads.0.weight", base.lm_head.weight)
        assert all(torch.equal(head, shared) for head in heads)
    differing = {key for key in {*config} | {*imported} if config.get(key) != imported.get(key)} - IGNORED_KEYS
    assert differing == ({"medusa_tie_lm_head"} if split else set())
    assert {*tensors} == {*stored} and all(torch.equal(tensors[name], stored[name]) for name in stored), option.name
