"""Import of published drafts as checkpoints of the workbench.

The entry point is `run.import_draft`. It downloads the draft and starts a child process with limited resources. There,
`work.convert` opens the source (`source`), detects its layout (`layouts`), reads it (`medusa`, `eagle`, `eagle3`,
`causal`, `own`), checks it against the base model (`base`, `tokens`) and writes the checkpoint.
"""
