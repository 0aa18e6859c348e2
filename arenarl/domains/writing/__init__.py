"""Open-ended writing: query, thinking, text, without tools (`environment.name: none`).
The embedded tasks have a truth that can be checked.

Open `queries` first (what is asked), then `truth` (what of it a text fulfils)
and `writer` (the teacher of mixed quality).
"""
