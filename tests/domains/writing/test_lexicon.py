"""The vocabulary keeps its promises: sentences are equally long, tones are told apart,
words that may be asked for or forbidden are in none."""

import re
from itertools import chain

import pytest

from arenarl.domains.writing.lexicon import LEXICONS, count_of, length_of

each_language = pytest.mark.parametrize("language", LEXICONS)


def all_sentences(lexicon):
    """Without those in which a word is put."""
    stated = [kind.sentence.format(kind.form.format(number)) for kind in lexicon.facts for number in kind.numbers[1:]]
    return [*stated, *chain.from_iterable(lexicon.tones.values())]


@each_language
def test_all_sentences_of_a_language_are_equally_long(language):
    lexicon = LEXICONS[language]
    with_word = [frame.format(word) for frame in lexicon.with_word for word in lexicon.words]
    assert {length_of(sentence, language) for sentence in all_sentences(lexicon) + with_word} == {lexicon.unit}
    titles = [lexicon.title.format(subject, occasion) for subject in lexicon.subjects for occasion in lexicon.occasions]
    assert {length_of(title, language) for title in titles} == {lexicon.title_length}


@each_language
def test_a_mark_is_in_sentences_of_its_tone_alone_and_each_of_them_has_one(language):
    lexicon = LEXICONS[language]
    marked = {tone: [sentence for sentence in all_sentences(lexicon)
                     if any(count_of(mark, sentence, language) for mark in marks)]
              for tone, marks in lexicon.marks.items()}  # fmt: skip
    assert marked == {tone: list(sentences) for tone, sentences in lexicon.tones.items()}


@each_language
def test_words_are_in_no_sentence_of_their_own_accord_and_in_no_other_word(language):
    lexicon = LEXICONS[language]
    names = [*lexicon.subjects, *lexicon.occasions]
    texts = [*all_sentences(lexicon), *names, *chain.from_iterable(lexicon.marks.values())]
    assert not [word for word in lexicon.words for text in texts if count_of(word, text, language)]
    assert not [(one, other) for one in lexicon.words for other in lexicon.words if one != other and one in other]


@each_language
def test_a_fact_is_found_by_its_own_pattern_only(language):
    for kind in LEXICONS[language].facts:
        for number in kind.numbers:
            stated = kind.sentence.format(kind.form.format(number))
            found = {other.section: re.findall(other.pattern, stated) for other in LEXICONS[language].facts}
            assert {name: texts for name, texts in found.items() if texts} == {kind.section: [kind.form.format(number)]}
