"""Tables of results: ours above the paper's, the best marked."""

from lipspline.paper.experiment import Table


def test_a_table_shows_ours_above_the_papers_and_stars_the_best():
    table = Table(
        "W1", "N", {"5": {"relu": (2.0, 0.25), "lls": (2.5,)}}, {"5": {"lls": (2.283, 0.006)}}, best="max", digits=".2f"
    )
    assert str(table).splitlines() == [
        "W1",
        "N         relu       lls",
        "------------------------------",
        "5  ours   2.00/0.25  2.50*",
        "   paper  -          2.28/0.01",
    ]


def test_the_smallest_is_starred_where_less_is_better_and_nothing_where_no_order_is_given():
    rows = {"a": {"x": (1.0,), "y": (2.0,)}}
    assert "1.000*" in str(Table("", "", rows, best="min"))
    assert "*" not in str(Table("", "", rows))


def test_a_missing_value_is_a_dash():
    assert str(Table("", "", {"a": {"x": (1.0,)}, "b": {"y": (2.0,)}})).splitlines()[-1].split() == [
        "b",
        "ours",
        "-",
        "2.000",
    ]
