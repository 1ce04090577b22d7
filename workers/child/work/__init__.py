"""The work of each job kind: the function that its `work` names, imported on demand."""
