"""Properties of the vocabulary: equal sentence lengths, distinct tones, and words to use or avoid in no sentence."""

import re
from itertools import chain

import pytest

from arenarl.domains.writing.lexicon import LEXICONS, count_of, length_of

each_language = pytest.mark.parametrize(("language", "lexicon"), LEXICONS.items(), ids=LEXICONS)


def fixed_sentences(lexicon):
    """Return all sentences but the frames for words to use."""
    stated = [kind.sentence.format(kind.form.format(number)) for kind in lexicon.facts for number in kind.numbers[1:]]
    return [*stated, *chain.from_iterable(lexicon.tones.values())]


@each_language
def test_all_sentences_of_a_language_have_one_length(language, lexicon):
    with_word = [frame.format(word) for frame in lexicon.with_word for word in lexicon.words]
    assert {length_of(sentence, language) for sentence in fixed_sentences(lexicon) + with_word} == {lexicon.unit}
    titles = [lexicon.title.format(subject, occasion) for subject in lexicon.subjects for occasion in lexicon.occasions]
    assert {length_of(title, language) for title in titles} == {lexicon.title_length}


@each_language
def test_marker_words_are_in_all_sentences_of_their_tone_and_in_no_others(language, lexicon):
    marked = {tone: [sentence for sentence in fixed_sentences(lexicon)
                     if any(count_of(mark, sentence, language) for mark in marks)]
              for tone, marks in lexicon.marks.items()}  # fmt: skip
    assert marked == {tone: list(sentences) for tone, sentences in lexicon.tones.items()}


@each_language
def test_words_to_use_or_avoid_are_in_no_sentence_and_in_no_other_word(language, lexicon):
    names = [*lexicon.subjects, *lexicon.occasions]
    texts = [*fixed_sentences(lexicon), *names, *chain.from_iterable(lexicon.marks.values())]
    assert not [word for word in lexicon.words for text in texts if count_of(word, text, language)]
    assert not [(word, other) for word in lexicon.words for other in lexicon.words if word != other and word in other]


@each_language
def test_only_its_own_pattern_finds_a_fact(language, lexicon):
    for kind in lexicon.facts:
        for number in kind.numbers:
            fact = kind.form.format(number)
            matches = {other.section: re.findall(other.pattern, kind.sentence.format(fact)) for other in lexicon.facts}
            assert {name: texts for name, texts in matches.items() if texts} == {kind.section: [fact]}
