import numpy as np
import pytest

from arenarl.domains.rubrics import domain_rubric, read_rubric, weighted_mean
from arenarl.domains.travel.truth import ANSWER_DIMENSIONS, PATH_DIMENSIONS
from arenarl.system.errors import UserError

PATH_SHARE = {"travel": 0.6, "research": 0.5, "writing": 0.0}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("domain", PATH_SHARE)
def test_a_rubric_weighs_path_and_answer_as_it_should(domain, language):
    rubric = domain_rubric(domain, language)
    weights = rubric.weights
    assert sum(weights[item.name] for item in rubric.items if item.part == "path") == pytest.approx(PATH_SHARE[domain])
    assert sum(weights.values()) == pytest.approx(1.0)
    assert rubric.names == domain_rubric(domain, "en").names and len(set(rubric.names)) == len(rubric.names)
    assert all("\n" not in item.description for item in rubric.items)


def test_the_travel_rubric_is_that_of_the_embedded_world_and_weighs_as_the_paper_does():
    rubric = domain_rubric("travel", "zh")
    assert rubric.names == PATH_DIMENSIONS + ANSWER_DIMENSIONS and rubric.for_view("answer").names == ANSWER_DIMENSIONS
    for scores in np.random.default_rng(0).uniform(0, 10, (20, 7)):
        dimensions = dict(zip(rubric.names, scores, strict=True))
        answer = {name: dimensions[name] for name in ANSWER_DIMENSIONS}
        assert rubric.total(dimensions) == 0.6 * np.mean(scores[:3]) + 0.4 * (sum(scores[3:]) / 4)
        assert rubric.total(dimensions) == pytest.approx(weighted_mean(dimensions, rubric.weights))
        assert rubric.for_view("answer").total(answer) == rubric.total(answer) == sum(scores[3:]) / 4


def test_a_language_without_a_rubric_takes_the_english_one_and_a_domain_without_one_is_refused():
    assert domain_rubric("travel", "fr") == domain_rubric("travel", "en")
    with pytest.raises(UserError, match="no rubric for the domain cooking"):
        domain_rubric("cooking", "en")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("answer: {weight: 1, dimensions: {clear: It is clear}", "is not valid YAML"),
        ("", "is no rubric: Input should be a valid dictionary"),
        ("Is it clear?", "is no rubric"),
        ("{}", "is no rubric"),
        ("style: {weight: 1, dimensions: {clear: It is clear}}", "is no rubric: style"),
        ("answer: {dimensions: {clear: It is clear}}", "is no rubric: answer.weight"),
        ("answer: {weight: 0, dimensions: {clear: It is clear}}", "is no rubric: answer.weight"),
        ("answer: {weight: yes, dimensions: {clear: It is clear}}", "is no rubric: answer.weight"),
        ("answer: {weight: 1, dimensions: {}}", "is no rubric: answer.dimensions"),
        ("answer: {weight: 1, dimensions: {clear: }}", "is no rubric: answer.dimensions.clear"),
        ("answer: {weight: 1, dimensions: {_clear: It is clear}}", "must be a word, such as answer_clarity"),
        ("answer: {weight: 1, dimensions: {model_config: It is clear}}", "must be a word"),
        ("answer: {weight: 1, dimension: {clear: It is clear}}", "is no rubric: answer.dimension"),
        (
            "path: {weight: 1, dimensions: {clear: It is}}\nanswer: {weight: 1, dimensions: {clear: It is}}",
            "have the same name",
        ),
    ],
)
def test_a_file_that_is_no_rubric_is_refused_in_a_line_that_says_where(text, said, tmp_path):
    path = tmp_path / "rubric.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=said) as refused:
        read_rubric(path)
    assert "\n" not in str(refused.value) and str(path) in str(refused.value)


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(UserError, match="does not exist; a rubric is a YAML"):
        read_rubric(tmp_path / "rubric.yaml")
