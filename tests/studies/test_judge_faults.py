from arenarl.studies.judge_faults import invented_scores


def line(messages, score, fault=None):
    return {"messages": messages, "reply": None if score is None else {"score": score}, "fault": fault}


def test_a_verdict_is_invented_unless_the_server_gave_it_to_the_same_prompt():
    served = [line("a", 1.0), line("a", 2.0, "prose"), line("b", 3.0), line("b", None, "cut")]
    assert invented_scores([line("a", 1.0), line("a", 2.0), line("b", 3.0), line("b", 3.0)], served) == 0
    assert invented_scores([line("a", 3.0), line("b", 5.0), line("c", 1.0)], served) == 3
