"""Draft networks as servers build them, in plain torch. Each reader loads an export like that server's loader. Readers
use neither the writers nor the workbench's own networks, so equal logits show that the files are correct.

An EAGLE reader (`eagle.py`, `eagle3.py`) has `layer_inputs`, `fuse`, `step`, `logits`, `target_ids`; a Medusa reader
has `logits` and `target_ids`; a standalone draft is a transformers model. Shapes: n positions, H hidden size, V
vocabulary of the base model, V' columns of the draft."""
