"""Everyone against one member, drawn by lot."""

from judges import perfect, scripted

from arenarl.tournament.play import run_tournament


def test_the_outcome_against_the_reference_is_all_that_counts():
    qualities = [3, 9, 5, 5, 1]
    ranking = run_tournament("random_reference", 5, perfect(qualities), seed=2)
    (reference,) = set.intersection(*({match.i, match.j} for match in ranking.matches))
    expected = [float((quality > qualities[reference]) - (quality < qualities[reference])) for quality in qualities]
    assert ranking.scores_G == expected and expected[reference] == 0 and len(ranking.matches) == 4


def test_every_member_is_the_reference_at_some_seed_and_a_failed_match_leaves_out_its_entrant():
    qualities = {(i, j): (9 - i, 9 - j) for i in range(3) for j in range(i + 1, 3)}
    found = set()
    for seed in range(30):
        ranking = run_tournament("random_reference", 3, scripted(qualities, failed=[{0, 1}]), seed=seed)
        (reference,) = set.intersection(*({match.i, match.j} for match in ranking.matches))
        found.add(reference)
        assert (ranking.scores_G[1 - reference] is None) if reference < 2 else (None not in ranking.scores_G)
    assert found == {0, 1, 2}
