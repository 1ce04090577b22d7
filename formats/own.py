"""The workbench's own folder: what training wrote."""

from formats.record import ANY, Format, Layout

FORMAT = Format(
    name="own",
    title="Speculoos",
    layouts={
        ANY: Layout(
            servers="Speculoos", writer="formats.writers.own:plan", table="", reader="", serve="formats.serve:speculoos"
        )
    },
)
