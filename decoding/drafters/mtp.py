"""The base model's own multi-token prediction (MTP) layer as a draft, without training.

As in DeepSeek-V3 (arXiv:2412.19437): at position t it reads the embedding of token t+1 and the final hidden state of t,
each normed, through a projection and a decoder layer of the base model's family, and predicts token t+2 with the base
model's LM head. Further tokens are drafted by feeding its output back, as vLLM does. So it drafts like EAGLE-1, with
the same trees and cache. transformers' `MtpModel` builds and loads the layer."""

import re
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache

from decoding.drafters.base import is_fast
from decoding.drafters.eagle import EagleDrafter, tree_of
from decoding.drafters.runners import UNLIMITED
from decoding.target import Target
from models.base import LoadedBase
from models.draft_layers import causal_mask
from models.identity import read_json, tensors
from models.mtp import mtp_layers, mtp_reason, mtp_tensors
from models.runtime.cache import KVCache
from models.runtime.transformers import CacheLayer, additive_mask, takes_additive_mask
from models.untrusted import sanitised_folder
from speculoos.errors import Unsupported


def load_mtp(base: LoadedBase) -> Any:
    """transformers' `MtpModel` of the base model, on its device; read once. Raises Unsupported if there is none, or if
    it cannot draft here."""
    if base.mtp is None:
        config, names = read_json(base.path / "config.json"), [entry.name for entry in tensors(base.path)]
        if not mtp_layers(config, names):
            raise Unsupported(f"{base.path.name} has no multi-token prediction layers in its files; choose a draft.")
        if reason := mtp_reason(config):
            raise Unsupported(f"The multi-token prediction layers of {base.path.name} cannot draft here: {reason}")
        base.mtp = _read(base, mtp_tensors(config, names))
    return base.mtp


def _read(base: LoadedBase, names: list[str]) -> Any:
    from transformers.modeling_layers import MtpModel

    # transformers finds the tensors by the layer numbers of released models only. Name and module select its renamings.
    pattern = re.compile("|".join(f"^{re.escape(name)}$" for name in names))
    attributes = {"get_mtp_weights_regex": staticmethod(lambda _model: pattern), "__module__": MtpModel.__module__}
    loader = type(MtpModel.__name__, (MtpModel,), attributes)
    with sanitised_folder(base.path) as clean:
        base.model.config._name_or_path = str(clean)
        try:
            model = loader.from_pretrained(base.model, device_map={"": base.device})
        except (RuntimeError, ValueError, KeyError, AttributeError) as error:
            reason = str(error).partition("\n")[0].replace(str(clean), base.path.name)
            raise Unsupported(
                f"The multi-token prediction layers of {base.path.name} cannot be loaded: {reason}"
            ) from None
        finally:
            base.model.config._name_or_path = str(base.path)
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"]
    if kinds[0] != "full_attention":
        raise Unsupported(
            f"The multi-token prediction layers of {base.path.name} have {kinds[0]}, which is not drafted."
        )
    return model.eval().requires_grad_(False)


class MtpRunner:
    """The first MTP layer with the interface of the runners of EAGLE drafts (`decoding.drafters.runners`)."""

    method, layers_wanted = "mtp", ()

    def __init__(self, base: LoadedBase):
        self.base, self.model = base, load_mtp(base)
        self.additive = takes_additive_mask(base)

    def new_cache(self) -> KVCache:
        return KVCache(1, UNLIMITED, grows=True)

    def fuse(self, hidden: torch.Tensor, aux: torch.Tensor | None) -> torch.Tensor:
        return hidden

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        return self.base.logits(features)

    def to_target(self, ids: torch.Tensor) -> torch.Tensor:
        return ids

    @torch.inference_mode()
    def __call__(
        self,
        features: torch.Tensor,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As ModuleRunner: features [n, H] of positions t and tokens t+1, int64 [n], → features [n, H]."""
        count = len(ids)
        visible = (causal_mask(count, cache.length + count, ids.device) if mask is None else mask)[None, None]
        embedded, model = self.model.embed_tokens(ids)[None], self.model
        out = model.layers[0](
            embedded,
            features[None],
            position_embeddings=model.rotary_emb(embedded, position_ids=positions[None]),
            attention_mask=additive_mask(visible, embedded.dtype) if self.additive else visible,
            position_ids=positions[None],
            cache=Cache(layers=[CacheLayer(cache.length, partial(cache.write, 0))]),
        )
        cache.stage(count)
        cache.commit_all()
        return (model.shared_post_norm(out) if model.use_shared_post_norm else out)[0]


def make_mtp(target: Target, **options: Any) -> EagleDrafter:
    """The drafter of the base model's own MTP layer; options as for EAGLE drafts."""
    if is_fast(target):
        raise Unsupported("The multi-token prediction layers of this base model cannot draft on the fast forward.")
    sample = bool(options.pop("sample", False))
    tree = tree_of(target, options, target.base.vocab_size)
    return EagleDrafter(MtpRunner(target.base), tree, target.base, sample)
