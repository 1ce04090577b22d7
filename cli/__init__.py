"""The command line: `speculoos`, its commands, and the launcher of the workbench processes."""
