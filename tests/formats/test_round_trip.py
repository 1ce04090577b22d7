"""What was exported comes back by the importer as it was: the same tensors and network, the same drafted tokens."""

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
from formats.export import build_export
from formats.imports.run import Conversion
from formats.imports.work import convert
from formats.options import export_options
from models.chat import render
from models.checkpoints import load_draft, read_config
from tests.formats.conftest import EVERY

SAYS_NOTHING = {"training", "base", "base_sha256", "speculoos_format", "_name_or_path"}


def drafted(folder, base):
    """Every step of a generation with this draft: what was drafted, what was accepted."""
    target = Target(base, max_length=128)
    drafter = make_drafter(target, load_draft(folder, base))
    prompt = render(base.tokenizer, [{"role": "user", "content": "the quick brown fox"}])
    steps = generate(target, drafter, prompt, GenerateConfig(max_tokens=8))
    return [json.loads(json.dumps({k: v for k, v in s.record().items() if "ms" not in k})) for s in steps]


@pytest.mark.parametrize("kind", EVERY)
def test_an_export_comes_back_whole(kind, base, checkpoint, tmp_path):
    folder = checkpoint(kind)
    config, said = read_config(folder), drafted(folder, base)
    for option in export_options(folder, base.path):
        if (
            not option.possible or option.name == "own" or find_format(option.name).scheme or option.name == "gguf"
        ):  # not imported
            continue
        stored = load_file(folder / "model.safetensors")
        build_export(folder, base, option.name, tmp_path / option.name)
        held = [
            path.stat().st_size for path in (tmp_path / option.name).iterdir() if path.suffix in (".safetensors", ".pt")
        ]
        assert option.bytes <= sum(held) <= option.bytes + 32_768 * len(held), option.name
        (scratch := tmp_path / f"import-{option.name}").mkdir()
        folders = (str(tmp_path / option.name), str(scratch), str(base.path))
        convert(asdict(Conversion(*folders, option.name, "", "tiny", "", "")))
        found, back = load_file(scratch / "draft" / "model.safetensors"), read_config(scratch / "draft")
        parted = bool(config.get("medusa_tie_lm_head")) and not back["medusa_tie_lm_head"]
        if parted:
            heads = [found.pop(f"lm_heads.{head}.weight") for head in range(back["medusa_num_heads"])]
            shared = stored.pop("lm_heads.0.weight", base.lm_head.weight)
            assert all(torch.equal(head, shared) for head in heads)
        differing = {key for key in {*config} | {*back} if config.get(key) != back.get(key)} - SAYS_NOTHING
        assert differing == ({"medusa_tie_lm_head"} if parted else set())
        assert {*found} == {*stored} and all(torch.equal(found[name], stored[name]) for name in stored), option.name
        assert drafted(scratch / "draft", base) == said
