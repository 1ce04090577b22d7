"""Draft networks as servers build them, in plain torch: each reads an export the way that server's loader does and
knows neither the writers nor our own networks, so that what both agree on is in the files. Sources are named at each.

An EAGLE reader (`eagle.py`, `eagle3.py`) has `layer_inputs`, `fuse`, `step`, `logits`, `target_ids`; Medusa's has
`logits` and `target_ids`; a standalone one is a model of transformers. Shapes: n places, H hidden, V vocabulary of the
base, V' columns of the draft.
"""
