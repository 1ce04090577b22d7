"""Published drafts as checkpoints of ours.

`run.import_draft` is the way in: it fetches and starts a limited child, in which `work.convert` reads the source
(`source`), sees what it is (`formats`), reads it (`medusa`, `eagle`, `eagle3`, `causal`, `own`), holds it against the
base (`base`, `tokens`) and writes the checkpoint.
"""
