"""What queries are about: Open-Travel, Open-DeepResearch, writing, or a domain of your own, each with rubric, tools,
truth and data.

Above the rollout engine, which plays any tools, and below judges, training and evaluation, which know a domain by its
interface alone. Open `domain` first, then `environments`; what is of one domain only lies in `travel`, `research` and
`writing`, which know nothing of each other. `public_data` reads what was published instead of generated.
"""
