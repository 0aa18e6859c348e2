from arenarl.report import markdown


def test_bars_and_line_ends_of_a_users_names_do_not_end_a_cell():
    text = markdown.table(["a|b", "c"], [["one\ntwo", "|"], ["", "x"]])
    assert text == "| a\\|b | c |\n| --- | --- |\n| one two | \\| |\n|  | x |"
