"""A contender of the training benchmarks: this project, nvidia-modelopt or speculators (option `side`), on the option
`device`. Runs in the environment of its library, so each side imports its own.

The option `plan` is a JSON file with `rows` ({"ids", "mask"}), `steps` (lists of row indices) and `settings`. Commands:
{"step": 3, "lr": 0.001} → {"loss", "seconds"}; {"save": FOLDER} → {}. A step includes the frozen base
model's forward pass. Every side pads batches to their longest row.
"""

import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from common import Json, serve

IGNORED = -100
Rows = list[dict[str, list[int]]]
Tensors = dict[str, torch.Tensor]


@dataclass
class PeerTrainer:
    """Model and loss of one side. `module`: the trainable one; `weights`: its tensors under this project's names."""

    packages: tuple[str, ...]
    module: torch.nn.Module
    loss: Callable[[Rows], torch.Tensor]
    weights: Callable[[], Tensors]


def ours(options: Json, settings: Json, rows: Rows) -> PeerTrainer:
    """This project: the method as `training.loop` runs it, one micro-batch per step."""
    from models.base import load_base
    from models.methods import train_config
    from models.runtime.weights import pack_supported
    from training.batches import Batch, TokenizedConversation
    from training.method import make_method

    config = train_config(
        method=options["method"],
        medusa_num_heads=settings["medusa_heads"],
        medusa_num_layers=settings["medusa_layers"],
        ttt_steps=settings["ttt_steps"],
        ttt_decay=settings["ttt_decay"],
        train_lm_head=False,
    )
    base = load_base(options["base"], dtype=options["base_dtype"], device=options["device"])
    tensors = [(torch.tensor(row["ids"]), torch.tensor(row["mask"], dtype=torch.bool)) for row in rows]
    method = make_method(config, base, [TokenizedConversation("", ids, mask, "") for ids, mask in tensors]).train()
    pack_supported(base, head=False)

    def loss(rows: Rows) -> torch.Tensor:
        ids, answer, real = padded(rows, options["device"])
        features = method.features(Batch(ids, answer, real.sum(1)))
        scale = torch.tensor(method.weights) / method.counts(features).clamp(min=1)
        return method(features, scale=scale).loss

    return PeerTrainer(("transformers",), method, loss, method.draft.state_dict)


def modelopt(options: Json, settings: Json, _rows: Rows) -> PeerTrainer:
    """nvidia-modelopt: `modelopt.torch.speculative.convert` and its own loss.

    Differences from its defaults: the draft layer has the sizes and the rotary base of the base model; the last norm is
    on, as in its EAGLE-3 preset; torch.compile is off (it recompiles for each batch width); the base model is frozen
    for Medusa, which `convert` does not do. Its collator pads all batches to one length and caches one mask per
    unrolled step, so this cache is cleared here.
    """
    import modelopt.torch.speculative as mtsp
    from modelopt.torch.speculative.config import eagle3_default_config
    from transformers import AutoModelForCausalLM

    eagle = options["method"] == "eagle3"
    model = AutoModelForCausalLM.from_pretrained(options["base"], dtype=torch.float32)
    if eagle:
        base, preset = model.config, copy.deepcopy(eagle3_default_config)
        theta = base.rope_parameters["rope_theta"]
        sizes = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps")
        preset.update({name: getattr(base, name) for name in sizes})
        preset |= {"rope_theta": theta, "rope_scaling": {"rope_type": "default", "rope_theta": theta}}
        preset["torch_dtype"] = "float32"
        config = {
            "eagle_architecture_config": preset,
            "eagle_ttt_steps": settings["ttt_steps"],
            "eagle_loss_decay_factor": settings["ttt_decay"],
            "eagle_use_torch_compile": False,
        }
        mtsp.convert(model, [("eagle", config)])
    else:
        heads = {"medusa_num_heads": settings["medusa_heads"], "medusa_num_layers": settings["medusa_layers"]}
        mtsp.convert(model, [("medusa", heads)])
    prefix = "eagle_module." if eagle else "medusa_heads."
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and prefix.rstrip(".") in name)
    model.to(options["device"]).train()

    def loss(rows: Rows) -> torch.Tensor:
        ids, answer, real = padded(rows, options["device"])
        if eagle:
            model._cached_attn_blk_masks.clear()
            mask = read_in_answer(answer)
            return model(input_ids=ids, attention_mask=real.long(), loss_mask=mask.long()).loss
        labels = torch.full_like(ids, IGNORED)
        labels[:, :-1] = torch.where(answer[:, 1:], ids[:, 1:], IGNORED)  # shifted, as in its collator
        return model(input_ids=ids, attention_mask=real.long(), labels=labels).loss

    def weights() -> Tensors:
        state = model.state_dict()
        return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}

    return PeerTrainer(("nvidia-modelopt", "transformers"), model, loss, weights)


def speculators(options: Json, settings: Json, _rows: Rows) -> PeerTrainer:
    """speculators: its EAGLE-3 model and loss.

    Its own pipeline gets hidden states from a vLLM server; here the frozen base model runs in the same process with
    transformers, as part of each step. Rows are packed without padding, as in speculators. Attention and losses are
    eager, as the defaults need torch.compile on a GPU.
    """
    from speculators.losses import resolve_loss_config
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.cli import create_transformer_layer_config
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(options["base"], dtype=torch.float32).eval().requires_grad_(False)
    base.to(device := torch.device(options["device"]))
    longest = base.config.max_position_embeddings
    draft = Eagle3DraftModel.from_training_args(
        create_transformer_layer_config(options["base"], 1, "llama", None, longest, [0]),
        verifier_name_or_path=options["base"],
        draft_vocab_size=base.config.vocab_size,
        norm_before_residual=False,
        ttt_steps=settings["ttt_steps"],
        draft_attn_impl="eager",
    )
    draft.to(device).train()
    losses = {"ttt_steps": settings["ttt_steps"], "ttt_step_loss_decay": settings["ttt_decay"]}
    losses["loss_config"] = resolve_loss_config("kl_div", "eager")

    @torch.no_grad()
    def hidden(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of the fused layers [B, L, 3H], and the input of the final norm [B, L, H]."""
        last: list[torch.Tensor] = []
        hook = base.model.norm.register_forward_pre_hook(lambda _module, inputs: last.append(inputs[0]))
        try:
            out = base.model(ids, output_hidden_states=True, use_cache=False)
        finally:
            hook.remove()
        return torch.cat([out.hidden_states[i] for i in draft.target_layer_ids], -1), last[0]

    def loss(rows: Rows) -> torch.Tensor:
        ids, answer, real = padded(rows, device)
        (aux, last), counted, parts = hidden(ids), read_in_answer(answer), []
        for i, n in enumerate(real.sum(1).tolist()):
            part = {"input_ids": ids[i, :n], "hidden_states": aux[i, :n], "verifier_last_hidden_states": last[i, :n]}
            part |= {"loss_mask": counted[i, :n], "position_ids": torch.arange(n, device=device)}
            part["lengths"] = torch.tensor([n], device=device)
            parts.append(shift_batch(part))
        names = ("input_ids", "hidden_states", "verifier_last_hidden_states", "loss_mask", "position_ids")
        packed = {name: torch.cat([part[name] for part in parts])[None] for name in names}
        lengths = torch.cat([part["lengths"] for part in parts])
        documents = torch.arange(len(rows), device=device).repeat_interleave(lengths)[None]
        return draft(**packed, document_ids=documents, **losses)[1]

    def weights() -> Tensors:
        from_base = ("embed_tokens.", "verifier_", "t2d", "d2t")
        return {name: t for name, t in draft.state_dict().items() if not name.startswith(from_base)}

    return PeerTrainer(("speculators", "transformers"), draft, loss, weights)


def padded(rows: Rows, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids (int64), answer mask and attention mask (bool), all [B, longest], right-padded with id 0."""
    width = max(len(row["ids"]) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    answer, real = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    for number, row in enumerate(rows):
        length = len(row["ids"])
        ids[number, :length] = torch.tensor(row["ids"])
        answer[number, :length] = torch.tensor(row["mask"], dtype=torch.bool)
        real[number, :length] = True
    return ids.to(device), answer.to(device), real.to(device)


def read_in_answer(answer: torch.Tensor) -> torch.Tensor:
    """bool [B, L]: both this token and the next are in an answer. Other libraries mask the loss by the input token of a
    position; this mask makes them count our positions."""
    both = torch.zeros_like(answer)
    both[..., :-1] = answer[..., :-1] & answer[..., 1:]
    return both


def make(options: Json) -> tuple[Json, Callable[[Json], Json]]:
    plan = json.loads(Path(options["plan"]).read_text())
    settings = plan["settings"]
    torch.manual_seed(settings["seed"])
    side = {"ours": ours, "modelopt": modelopt, "speculators": speculators}[options["side"]]
    trainer = side(options, settings, plan["rows"])
    parameters = [p for p in trainer.module.parameters() if p.requires_grad]
    fixed = {"betas": settings["betas"], "weight_decay": settings["weight_decay"]}
    optimizer = torch.optim.AdamW(parameters, lr=0.0, fused=True, **fixed)

    def answer(command: Json) -> Json:
        """One optimizer step, timed from token lists to updated weights; or a file with the draft's tensors."""
        if "save" in command:
            from safetensors.torch import save_file

            tensors = {name: tensor.detach().contiguous() for name, tensor in trainer.weights().items()}
            Path(command["save"]).mkdir(parents=True, exist_ok=True)
            save_file(tensors, Path(command["save"]) / "draft.safetensors")
            return {}
        rows = [plan["rows"][i] for i in plan["steps"][command["step"]]]
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = command["lr"]
        loss = trainer.loss(rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, settings["clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = float(loss.detach())
        return {"loss": value, "seconds": time.perf_counter() - began}

    versions = {name: version(name) for name in trainer.packages} | {"torch": torch.__version__}
    return {"trainable": sum(p.numel() for p in parameters), "versions": versions}, answer


if __name__ == "__main__":
    serve(make)
