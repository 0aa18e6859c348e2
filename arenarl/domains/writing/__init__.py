"""Open-ended writing: query, thinking and text, without tools (`environment.name: none`).

Open `queries` first (the constraints of an embedded task), then `truth` (which constraints a text meets) and `writer`
(the scripted teacher of mixed quality).
"""
