"""What any program needs that must survive a kill and explain itself: files that appear whole, errors, seeds, progress, shared sqlite.

The lowest package: it knows nothing of policies or judges, and imports nothing of this project. Open `errors` first: whether a failure
ends as one line or as a traceback is decided there, and `UserError` is raised everywhere.
"""
