"""What each kind of job does: `run(request, context)` in a module called like the kind, imported when it is needed."""
