"""The command line: `speculoos`, its commands, and what starts the processes of the workbench."""
