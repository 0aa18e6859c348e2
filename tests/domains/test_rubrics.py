import numpy as np
import pytest

from arenarl.domains.rubrics import domain_rubric, read_rubric, weighted_mean
from arenarl.domains.travel.truth import ANSWER_DIMENSIONS, PATH_DIMENSIONS
from arenarl.system.errors import UserError

PATH_SHARE = {"travel": 0.6, "research": 0.5, "writing": 0.0}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("domain", PATH_SHARE)
def test_path_and_answer_have_the_papers_weights(domain, language):
    rubric = domain_rubric(domain, language)
    weights = rubric.weights
    assert sum(weights[item.name] for item in rubric.items if item.part == "path") == pytest.approx(PATH_SHARE[domain])
    assert sum(weights.values()) == pytest.approx(1.0)
    assert rubric.names == domain_rubric(domain, "en").names and len(set(rubric.names)) == len(rubric.names)
    assert all("\n" not in item.description for item in rubric.items)


def test_the_travel_rubric_has_the_truths_dimensions_and_the_papers_total():
    rubric = domain_rubric("travel", "zh")
    assert rubric.names == PATH_DIMENSIONS + ANSWER_DIMENSIONS and rubric.for_view("answer").names == ANSWER_DIMENSIONS
    for scores in np.random.default_rng(0).uniform(0, 10, (20, 7)):
        dimensions = dict(zip(rubric.names, scores, strict=True))
        answer = {name: dimensions[name] for name in ANSWER_DIMENSIONS}
        assert rubric.total(dimensions) == 0.6 * np.mean(scores[:3]) + 0.4 * (sum(scores[3:]) / 4)
        assert rubric.total(dimensions) == pytest.approx(weighted_mean(dimensions, rubric.weights))
        assert rubric.for_view("answer").total(answer) == rubric.total(answer) == sum(scores[3:]) / 4


def test_a_rubric_of_the_current_folder_comes_first_and_english_replaces_a_missing_language(tmp_path, monkeypatch):
    assert domain_rubric("travel", "fr") == domain_rubric("travel", "en")
    with pytest.raises(UserError, match="no rubric for the domain baking"):
        domain_rubric("baking", "en")
    folder = tmp_path / "configs" / "rubrics"
    folder.mkdir(parents=True)
    (folder / "baking_en.yaml").write_text("answer: {weight: 1, dimensions: {crisp: Is it crisp}}")
    monkeypatch.chdir(tmp_path)
    assert domain_rubric("baking", "en").names == domain_rubric("baking", "zh").names == ("crisp",)


@pytest.mark.parametrize(("text", "message"), [
    (None, "does not exist; a rubric is a YAML"),
    ("answer: {weight: 1, dimensions: {clear: It is clear}", "is not valid YAML"),
    ("", "is not a rubric: Input should be a valid dictionary"),
    ("Is it clear?", "is not a rubric"),
    ("{}", "is not a rubric"),
    ("style: {weight: 1, dimensions: {clear: It is clear}}", "is not a rubric: style"),
    ("answer: {dimensions: {clear: It is clear}}", "is not a rubric: answer.weight"),
    ("answer: {weight: 0, dimensions: {clear: It is clear}}", "is not a rubric: answer.weight"),
    ("answer: {weight: yes, dimensions: {clear: It is clear}}", "is not a rubric: answer.weight"),
    ("answer: {weight: 1, dimensions: {}}", "is not a rubric: answer.dimensions"),
    ("answer: {weight: 1, dimensions: {clear: }}", "is not a rubric: answer.dimensions.clear"),
    ("answer: {weight: 1, dimensions: {_clear: It is clear}}", "must be a word, such as answer_clarity"),
    ("answer: {weight: 1, dimensions: {model_config: It is clear}}", "must be a word"),
    ("answer: {weight: 1, dimension: {clear: It is clear}}", "is not a rubric: answer.dimension"),
    ("path: &part {weight: 1, dimensions: {clear: It is}}\nanswer: *part", "a dimension of the same name"),
])  # fmt: skip
def test_an_invalid_rubric_is_refused_in_one_line_with_its_path(text, message, tmp_path):
    path = tmp_path / "rubric.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_rubric(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
