"""What any program needs that must survive kills and explain its errors:
atomic files, errors, seeds, progress, shared sqlite.

The lowest package: it knows nothing of policies or judges and imports nothing from this project. Open `errors` first:
it decides whether a failure ends as one line or as a traceback; `UserError` is raised everywhere.
"""
