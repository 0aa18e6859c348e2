"""How text becomes search terms, for the travel world's places and for research pages alike:
English singulars, Chinese pairs."""


def singular(word: str) -> str:
    """An English word without its plural, roughly; the same for queries and documents, so that they meet.

    >>> singular("cities"), singular("temples"), singular("bus")
    ('city', 'temple', 'bus')
    """
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def pairs(word: str) -> list[str]:
    """Neighbouring characters: Chinese is written without blanks between words.

    >>> pairs("安静的")
    ['安静', '静的']
    """
    return [word[index : index + 2] for index in range(len(word) - 1)]
