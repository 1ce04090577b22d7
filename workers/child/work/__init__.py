"""The work of each job kind: `run(request, context)` in a module named after the kind, imported on demand."""
