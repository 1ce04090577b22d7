"""llama.cpp's server from the package xllamacpp, with the options of `llama-server` that `formats.engines` uses. Run by
the Python of its own environment, so it imports nothing of this project."""

import argparse
import os
import threading

import xllamacpp

TYPES = {
    "draft-eagle3": "COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3",
    "draft-dflash": "COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH",
    "draft-simple": "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE",
    "ngram-simple": "COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE",
}
CACHE_TYPES = {"f16": "GGML_TYPE_F16", "f32": "GGML_TYPE_F32"}
FLASH_ATTENTION = {
    "auto": "LLAMA_FLASH_ATTN_TYPE_AUTO",
    "on": "LLAMA_FLASH_ATTN_TYPE_ENABLED",
    "off": "LLAMA_FLASH_ATTN_TYPE_DISABLED",
}


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--alias", default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("-c", "--ctx-size", type=int, default=4096)
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("-ngl", "--n-gpu-layers", type=int, default=0)
    parser.add_argument("-fa", "--flash-attn", choices=FLASH_ATTENTION, default="auto")
    parser.add_argument("-ctk", "--cache-type-k", choices=CACHE_TYPES, default="f16")
    parser.add_argument("-ctv", "--cache-type-v", choices=CACHE_TYPES, default="f16")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--model-draft", default="")
    parser.add_argument("--spec-type", choices=TYPES)
    parser.add_argument("--spec-draft-n-max", type=int, default=3)
    parser.add_argument("--spec-draft-type-k", choices=CACHE_TYPES, default="f16")
    parser.add_argument("--spec-draft-type-v", choices=CACHE_TYPES, default="f16")
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = options.model, {options.alias}
    params.hostnames, params.port = [options.host], options.port
    params.n_ctx, params.n_parallel, params.n_gpu_layers = options.ctx_size, options.parallel, options.n_gpu_layers
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, FLASH_ATTENTION[options.flash_attn])
    params.cache_type_k = getattr(xllamacpp.ggml_type, CACHE_TYPES[options.cache_type_k])
    params.cache_type_v = getattr(xllamacpp.ggml_type, CACHE_TYPES[options.cache_type_v])
    params.endpoint_metrics = options.metrics
    if key := os.environ.get("LLAMA_API_KEY"):
        params.api_keys = [key]
    if options.spec_type:
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, TYPES[options.spec_type])]
        draft = params.speculative.draft
        draft.n_max = options.spec_draft_n_max
        draft.cache_type_k = getattr(xllamacpp.ggml_type, CACHE_TYPES[options.spec_draft_type_k])
        draft.cache_type_v = getattr(xllamacpp.ggml_type, CACHE_TYPES[options.spec_draft_type_v])
        if options.model_draft:
            draft.mparams.path = options.model_draft
    server = xllamacpp.Server(params)
    print(f"llama.cpp of xllamacpp {xllamacpp.__version__} listens on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
