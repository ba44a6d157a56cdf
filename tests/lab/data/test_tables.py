import gzip
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stimulus_moo.lab.data import DataError
from stimulus_moo.lab.data.tables import TableFormat, known_values, read_table, row_error

PLAIN = TableFormat(("age", "name", "score"), numeric=frozenset({"age", "score"}), gaps=frozenset({"score"}))
HEADED = TableFormat(("name", "age"), numeric=frozenset({"age"}), header=True)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("tables") / "table.csv"


def refused(file, text: str, layout: TableFormat = PLAIN) -> str:
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        read_table(file, layout)
    assert str(file) in str(caught.value)
    return str(caught.value)


def test_numbers_text_gaps_and_spaces(file):
    file.write_text("1, a b, 2.5\n\n-3e2,NA, \n")
    table = read_table(file, PLAIN)
    assert table["age"].tolist() == [1.0, -300.0]
    assert table["name"].tolist() == ["a b", "NA"]
    np.testing.assert_array_equal(table["score"], [2.5, np.nan])


def test_a_header_allows_other_columns_and_the_first_of_two_equal_names_is_read(file):
    file.write_text('age,other,name,age\n1,x,"a,b",9\n2,y,c,9\n')
    table = read_table(file, HEADED)
    assert list(table.columns) == ["name", "age"]
    assert table["age"].tolist() == [1.0, 2.0]
    assert table["name"].tolist() == ["a,b", "c"]


def test_gzipped_content_is_recognised_under_any_name(file):
    file.write_bytes(gzip.compress(b"1,a,2\n"))
    assert read_table(file, PLAIN)["name"].tolist() == ["a"]


def test_comments_are_ignored(file):
    file.write_text("|a comment\n1,a,2\n")
    assert len(read_table(file, TableFormat(PLAIN.columns, PLAIN.numeric, comment="|"))) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected rows, found none"),
        ("1,a,2\n1,a\n", "line 2: expected 3 fields separated by commas, found 2"),
        ("1,a,2,3\n", "line 1: expected 3 fields separated by commas, found 4"),
        ("1,a,2\n\n1,a,2,3\n", "line 3: expected 3 fields"),
        ("1,a,2\nx,a,2\n", "line 2, column 'age': expected a finite number, found 'x'"),
        ("1,a,2\n,a,2\n", "line 2, column 'age': expected a finite number, found ''"),
        ("nan,a,2\n", "line 1, column 'age': expected a finite number, found 'nan'"),
        ("1,a,inf\n", "line 1, column 'score': expected a finite number, found 'inf'"),
        ("1,a,1e999\n", "line 1, column 'score': expected a finite number"),
    ],
)
def test_a_broken_file_is_refused_with_its_line_and_the_fix(file, text, message):
    found = refused(file, text)
    assert message in found
    assert "get it again" in found


def test_a_missing_column_is_named(file):
    assert "line 1: expected the column 'age' in the header, found name, years" in refused(
        file, "name,years\na,1\n", HEADED
    )
    assert "found an empty file" in refused(file, "", HEADED)
    assert "expected rows, found none" in refused(file, "name,age\n", HEADED)


def test_unknown_values_are_refused_with_their_line(file):
    file.write_text("1,a,2\n\n1,b,2\n")
    table = read_table(file, PLAIN)
    known_values(file, PLAIN, table, "name", ("a", "b"))
    with pytest.raises(DataError, match=r"line 3, column 'name': expected 'a' or 'c', found 'b'"):
        known_values(file, PLAIN, table, "name", ("a", "c"))
    assert "line 3, column 'age': expected less, found 1" in str(row_error(file, PLAIN, 1, "age", "less", 1))


def test_damaged_bytes_are_refused(file):
    for content in (gzip.compress(b"1,a,2\n" * 1000)[:-9], b"1,\xff\xfe,2\n"):
        file.write_bytes(content)
        with pytest.raises(DataError, match="truncated or damaged"):
            read_table(file, PLAIN)


def test_missing_files_directories_and_pipes_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, found in (("none", "nothing"), (".", "no regular file"), ("pipe", "no regular file")):
        with pytest.raises(DataError, match=found):
            read_table(tmp_path / name, PLAIN)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(st.text(st.sampled_from("019.-+eEnaif\"', \n\r\t\x00|é_"), max_size=60), st.sampled_from(["", "1,a,2\n"]))
def test_any_text_gives_finite_numbers_or_a_data_error(file, text, start):
    file.write_text(start + text, newline="")
    try:
        table = read_table(file, PLAIN)
    except DataError:
        return
    assert np.isfinite(table["age"]).all()
    assert not np.isinf(table["score"]).any()
    assert not table["name"].isna().any()
