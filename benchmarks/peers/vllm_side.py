"""vLLM as a contender of benchmarks.gpu_check: greedy answers one at a time, plain or with an exported draft. Runs in
vLLM's environment.

The option `prompts` is a file with a JSON list of lists of token ids, `draft` the folder of an export, or "". Commands:
{"prompt": 3}.
"""

import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from common import Json, serve

MEMORY_SHARE, LONGEST = 0.3, 2048


def make(options: Json) -> tuple[Json, Callable[[Json], Json]]:
    from vllm import LLM, SamplingParams

    prompts = json.loads(Path(options["prompts"]).read_text())
    speculative = {"model": options["draft"], "method": "eagle3", "num_speculative_tokens": options["depth"]}
    model = LLM(
        options["model"],
        dtype=options["dtype"],
        max_model_len=LONGEST,
        max_num_seqs=1,
        gpu_memory_utilization=MEMORY_SHARE,
        speculative_config=speculative if options["draft"] else None,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=options["max_tokens"], ignore_eos=True)

    def answer(command: Json) -> Json:
        prompt = {"prompt_token_ids": prompts[command["prompt"]]}
        began = time.perf_counter()
        (output,) = model.generate([prompt], sampling, use_tqdm=False)
        return {"seconds": time.perf_counter() - began, "tokens": len(output.outputs[0].token_ids)}

    return {"versions": {"vllm": version("vllm")}}, answer


if __name__ == "__main__":
    serve(make)
