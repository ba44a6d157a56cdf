import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stimulus_moo.lab.data import DataError
from stimulus_moo.lab.data.arff import read_numeric_arff

FUZZ = settings(max_examples=300, derandomize=True, deadline=None)
GOOD = (
    "% a comment\n@relation 'r s'\n\n@ATTRIBUTE 'a b' numeric\n@attribute c REAL\n@attribute d integer\n@DATA\n1,2,3\n"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("arff") / "file.arff"


def refused(file, text: str) -> str:
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        read_numeric_arff(file)
    assert str(file) in str(caught.value)
    return str(caught.value)


def test_names_values_and_missing_values(file):
    file.write_text(GOOD + "% between rows\n\n-1.5e3, ?,+.25\n")
    table, names = read_numeric_arff(file)
    assert names == ["a b", "c", "d"]
    np.testing.assert_array_equal(table, [[1, 2, 3], [-1500, np.nan, 0.25]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 0: expected an ARFF file"),
        ("hello\n", "line 1: expected @relation, @attribute or @data, found 'hello'"),
        ("@relation r\n@data\n1\n", "line 2: expected @attribute lines before @data"),
        ("@relation r\n@attribute a numeric\n", "line 2"),
        ("@relation r\n@attribute a\n@data\n1\n", "line 2: expected @attribute NAME TYPE"),
        ("@relation r\n@attribute a {x,y}\n@data\nx\n", "line 2: expected numeric attributes only"),
        ("@relation r\n@attribute a string\n@data\nx\n", "'a' of type 'string'"),
        ("@relation r\n@attribute a date yyyy\n@data\nx\n", "of type 'date yyyy'"),
        ("@relation r\n@attribute a relational\n@data\nx\n", "of type 'relational'"),
        (GOOD.replace("c REAL", "'a b' real"), "line 5: expected each attribute once, found 'a b' again"),
        (GOOD + "1,2\n", "line 9: expected 3 values, one per attribute, found 2"),
        (GOOD + "1,2,3,4\n", "line 9: expected 3 values, one per attribute, found 4"),
        (GOOD + "{0 1, 2 3}\n", "line 9: expected numbers or ?"),
        (GOOD + "1,2,nan\n", "line 9: expected numbers or ?"),
        (GOOD + "1,2,1_0\n", "line 9: expected numbers or ?"),
        (GOOD + "1,2,3-4\n", "line 9"),
        (GOOD + "1,,3\n", "line 9"),
        (GOOD + "1,2,1e999\n", "too large"),
        (GOOD[: GOOD.index("1,2,3")], "expected rows after @data, found none"),
        (GOOD + "1," * (1 << 20) + "\n", "line 9: expected lines shorter"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(file, text, message):
    assert message in refused(file, text)


def test_a_nominal_attribute_is_called_nominal_and_the_remedy_named(file):
    message = refused(file, "@relation r\n@attribute colour {red,blue}\n@data\nred\n")
    assert "the nominal attribute 'colour'" in message
    assert "encode others as numbers" in message


def test_missing_files_directories_and_pipes_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, found in (("none", "nothing"), (".", "no regular file"), ("pipe", "no regular file")):
        with pytest.raises(DataError, match=found):
            read_numeric_arff(tmp_path / name)


@FUZZ
@given(st.binary(max_size=300), st.sampled_from([b"", b"@relation r\n", b"@attribute a numeric\n", GOOD.encode()]))
def test_random_bytes_give_finite_numbers_or_a_data_error(file, content, start):
    file.write_bytes(start + content)
    try:
        table, _ = read_numeric_arff(file)
    except DataError:
        return
    assert not np.isinf(table).any()


HOSTILE = st.text(
    st.sampled_from("@attributedata relation numeric{}'\"%,?0123456789.eE+-\\\n\t \x00\x1c\u2028"), max_size=200
)


@FUZZ
@given(HOSTILE, st.sampled_from(["", "@relation r\n@attribute ", "@attribute a numeric\n@data\n", GOOD]))
def test_text_in_the_language_of_arff_gives_a_table_or_a_data_error(file, text, start):
    file.write_text(start + text)
    try:
        table, names = read_numeric_arff(file)
    except DataError:
        return
    assert table.shape[1] == len(names)


def test_every_truncation_gives_whole_rows_or_a_data_error(file):
    content = GOOD + "44,55,66\n"
    for length in range(len(content)):
        file.write_text(content[:length])
        try:
            table, names = read_numeric_arff(file)
        except DataError:
            continue
        assert names == ["a b", "c", "d"]
        assert len(table) in (1, 2)
