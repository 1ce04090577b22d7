"""Every kind of draft in every format: either it goes there, what an independent reader rebuilds from the files drafts
the same, and the importer brings it back as it was: the same tensors and network, the same drafted tokens; or a
sentence says why not and nothing is written."""

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
from tests.formats.conftest import EVERY
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
SAYS_NOTHING = {"training", "base", "base_sha256", "speculoos_format", "_name_or_path"}


def drafted(folder, base):
    """Every step of a generation with this draft: what was drafted, what was accepted."""
    target = Target(base, max_length=128)
    drafter = make_drafter(target, load_draft(folder, base))
    prompt = render(base.tokenizer, [{"role": "user", "content": "the quick brown fox"}])
    steps = generate(target, drafter, prompt, GenerateConfig(max_tokens=8))
    return [json.loads(json.dumps({k: v for k, v in s.record().items() if "ms" not in k})) for s in steps]


@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, "float32") for kind in EVERY), *((kind, "bfloat16") for kind in HALF)]
)
def test_a_draft_goes_where_it_can_drafts_the_same_there_and_comes_back(kind, dtype, base, checkpoint, tmp_path):
    folder = checkpoint(kind, dtype)
    said = drafted(folder, base) if dtype == "float32" else None
    for option in export_options(folder, base.path):
        if find_format(option.name).scheme:  # test_quantized.py
            continue
        target = tmp_path / option.name
        assert option.possible == (option.name == "own" or option.name in TAKES[kind]), (option.name, option.reason)
        if not option.possible:
            with pytest.raises(Unsupported) as refused:
                build_export(folder, base, option.name, target)
            assert str(refused.value) == option.reason and not target.exists()
            continue
        report = build_export(folder, base, option.name, target)
        assert report.passed, report.failures
        assert not find_changed_files(target)
        if option.name != "own":
            check_folder(target, report, option.name)
            if option.name != "gguf":  # test_gguf.py
                check_table(target, option.name, CheckpointFiles.read(folder, base.path))
                if said is not None:
                    check_return(folder, target, option, base, tmp_path)
                    assert drafted(tmp_path / f"import-{option.name}" / "draft", base) == said
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")], "something half-made stayed"


def check_folder(target, report, name):
    """The report, the sums of every file, and a README with a command."""
    assert ExportReport.from_json(json.loads((target / "validation.json").read_text())) == report
    assert {*read_checksums(target)} == {p.name for p in target.iterdir()} - {"SHA256SUMS"}
    assert report.figures["largest_relative_difference"] <= 1e-4 and report.figures["drafted"] >= 18
    said = (target / "README.md").read_text()
    programs = [program for program in check(said, target.parent, "PATH_OF_THE_BASE") if program != "curl"]
    expected = SERVED_BY.get(name, ENGINE if report.method == "medusa" else ["trtllm-serve"])
    assert programs == (["transformers"] if (report.method, name) == ("dflash", "huggingface") else expected)
    assert report.subject["tokenizer_sha256"] in said


def check_return(folder, target, option, base, tmp_path):
    """The size that was said, and the checkpoint of the importer, in `tmp_path/import-<name>/draft`."""
    config, stored = read_config(folder), load_file(folder / "model.safetensors")
    held = [path.stat().st_size for path in target.iterdir() if path.suffix in (".safetensors", ".pt")]
    assert option.bytes <= sum(held) <= option.bytes + 32_768 * len(held), option.name
    (scratch := tmp_path / f"import-{option.name}").mkdir()
    convert(asdict(Conversion(str(target), str(scratch), str(base.path), option.name, "", "tiny", "", "")))
    found, back = load_file(scratch / "draft" / "model.safetensors"), read_config(scratch / "draft")
    parted = bool(config.get("medusa_tie_lm_head")) and not back["medusa_tie_lm_head"]
    if parted:
        heads = [found.pop(f"lm_heads.{head}.weight") for head in range(back["medusa_num_heads"])]
        shared = stored.pop("lm_heads.0.weight", base.lm_head.weight)
        assert all(torch.equal(head, shared) for head in heads)
    differing = {key for key in {*config} | {*back} if config.get(key) != back.get(key)} - SAYS_NOTHING
    assert differing == ({"medusa_tie_lm_head"} if parted else set())
    assert {*found} == {*stored} and all(torch.equal(found[name], stored[name]) for name in stored), option.name
