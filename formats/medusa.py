"""The layout of the Medusa repository, which Text Generation Inference reads too.

Sources: FasterDecoding/Medusa medusa/model/medusa_model.py; text-generation-inference
server/text_generation_server/layers/{medusa,speculative}.py, models/__init__.py.
"""

from formats import refusals
from formats.record import Format, Layout

FORMAT = Format(
    name="medusa",
    title="Medusa repository and TGI",
    layouts={
        "medusa": Layout(
            servers="FasterDecoding/Medusa, Text Generation Inference 3",
            writer="formats.writers.medusa:repository",
            table="formats.tables.medusa:repository",
            reader="formats.readers.medusa:repository",
            serve="formats.serve:tgi",
            refusal=refusals.first_of(
                refusals.some_blocks("the Medusa repository"),
                refusals.whole_vocabulary("the Medusa repository"),
                refusals.own_head_without_bias("the Medusa repository"),
                refusals.only("the Medusa repository", refusals.MEDUSA),
            ),
        )
    },
    otherwise="The Medusa repository and TGI take Medusa heads only.",
)
