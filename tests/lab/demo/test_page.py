"""The page: self-contained, with the sentences first, and names as they are."""

from dataclasses import replace

from stimulus_moo.fronts import Front, FrontPoint
from stimulus_moo.lab.demo.advice import advice
from stimulus_moo.lab.demo.page import front_chart, front_sentence, front_table, page, results_table
from stimulus_moo.lab.demo.problems import SCALED

from ..fake_runs import EVIL
from ..report.test_report import Reader
from .test_advice import ADAM, AUTO, result

FRONT = Front(
    [FrontPoint(k, [1.0 + 0.03 * k, 2.0 - k / 10], [0.5, 0.5], 0.0, 40 if k else 100, {}, {}) for k in range(4)],
    names=["first", "second"],
)


def test_the_page_opens_with_what_to_use_and_needs_no_network():
    results = [result({AUTO: (1e-6,), ADAM: (0.1,)}), result({AUTO: (1e-5,), ADAM: (0.2,)}, SCALED)]
    results[0] = replace(results[0], group=replace(results[0].group, tasks=(EVIL, "right")))
    text = page(results, FRONT, "")
    read = Reader(text)
    words = [word for word in read.words if word.strip()]
    assert words.index(advice(results[0])[0]) < words.index(advice(results[1])[0]) < 12
    assert [tag for tag, _ in read.tags].count("script") == 3  # data, plotly, ours
    assert not any("src" in attributes for _, attributes in read.tags)
    links = {attributes["href"] for tag, attributes in read.tags if tag == "a"}
    assert {link.rsplit("/", 1)[1] for link in links} >= {"reproduction.html", "front.html"}
    assert "<script>alert" not in text


def test_the_front_is_in_order_and_the_choice_is_marked():
    table = front_table(FRONT)
    assert [row[0].text for row in table.rows] == ["0", "1", "2", "3"]
    assert [row[0].text for row in table.rows if row[1].best] == ["1"]  # at most 5% above 1.0, the second loss least
    assert front_chart(FRONT)["series"][1]["y"] == [1.9]
    assert "220 passes, 2.2 times those of the first model" in front_sentence(FRONT)


def test_the_table_has_costs_and_marks_the_best():
    table = results_table(result({AUTO: (1e-6, 3e-6), ADAM: (0.1, 0.2)}))
    assert table.columns[-3:] == ("Steps", "Passes", "Seconds")
    assert [row[1].text for row in table.rows if row[1].best] == ["2e-06 ± 1.4e-06"]
