"""speculators, vLLM's own format for drafts: EAGLE-3.

Sources: speculators/models/eagle3/{config,core}.py, speculators/model.py (DraftVocabMixin), speculators/config.py.
"""

from formats import refusals
from formats.record import Format, Layout

FORMAT = Format(
    name="speculators",
    title="speculators",
    layouts={
        "eagle3": Layout(
            servers="speculators 0.9, vLLM 0.29 to 0.33",
            writer="formats.writers.eagle3:speculators",
            table="formats.tables.eagle3:speculators",
            reader="formats.readers.eagle3:speculators",
            serve="formats.serve:speculators",
            refusal=refusals.first_of(
                refusals.three_layers("vLLM, given speculators' format,"),
                refusals.ascending_layers("vLLM"),
                refusals.only("speculators", refusals.EAGLE31),
            ),
        )
    },
    lacking={
        "eagle": "speculators 0.9 has no EAGLE-1 any more; take the format vllm or sglang.",
        "medusa": "speculators never had Medusa.",
        "draft": "speculators holds heads, not whole models; take the format huggingface.",
    },
    otherwise="speculators has no place for this method.",
)
