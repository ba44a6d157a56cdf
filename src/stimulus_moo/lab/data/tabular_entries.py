"""Entries of the registry with tables, molecules and queries: census, fairness, Tox21 and MQ2008."""

from __future__ import annotations

from stimulus_moo.lab.data.entry import DataFile, DataSet

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_PROPUBLICA = "https://raw.githubusercontent.com/propublica/compas-analysis/bafff5da3f2e45eca6c2d5055faad269defd135a/"
_COMPAS = "compas-scores-two-years.csv"

_CENSUS_FILES = (
    DataFile(
        "census_income_1994_1995_train.csv.gz",
        "3676a81db7d3528f3f8b9f3c699d0f0aa28db45e6e994fa0b8ed38327539ee86",
        103_874_469,
    ),
    DataFile(
        "census_income_1994_1995_test.csv.gz",
        "98402b1ab879573d0a7f38a699a40258080e25e33d3401e7bf9c96d3fa0fab8c",
        51_918_813,
    ),
)
_ADULT_FILES = (
    DataFile(
        "adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        3_974_305,
        (_UCI + "adult/adult.data",),
    ),
    DataFile(
        "adult.test",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        2_003_153,
        (_UCI + "adult/adult.test",),
    ),
)
_COMPAS_FILE = DataFile(
    _COMPAS,
    "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
    2_546_489,
    (_PROPUBLICA + _COMPAS,),
)
_CREDIT_FILE = DataFile(
    "credit-default.csv.gz", "af36211f57585cff1a7a788ef3e0d52aecfac301893acaa7373d7f7d72a7f9d5", 4_187_317
)
_TOX21_FILE = DataFile("tox21.csv.gz", "b58cc1f683e78e3c7a1bf7116e9aac0119804018d100f7b8cdb0857941c31aca", 458_635)
_MQ2008_FILES = (
    DataFile("S1.txt.gz", "cbd42504549a2388f6c0aefdb506f22074225b574c7a5df10194174c9b00e4e0", 1_802_248),
    DataFile("S2.txt.gz", "055ac792cb8f7d5a029090b8acbfb6c57323339d1371251bf2465ac182aa8605", 2_233_711),
    DataFile("S3.txt.gz", "a03fe2b6e76479de60fecdb37d560a40a4e899b0cd685553d2da31ea205af1ab", 1_881_418),
    DataFile("S4.txt.gz", "a239850bc6fe960ad08c2b7b0d99db90fe976dd93a15358e98036591b4e7a2ac", 1_663_264),
    DataFile("S5.txt.gz", "c68c52feb1ecae7f17b64c8e2fda2098302681bbd4ea5fad8c73a1d32a1cf2b2", 1_765_771),
)

TABULAR = (
    DataSet(
        name="census",
        title="Census-Income (KDD): 199,523 + 99,762 people, income, marital status and education",
        folder="census",
        files=_CENSUS_FILES,
        origin="U.S. Census Bureau, UCI Machine Learning Repository",
        licence="CC BY 4.0",
        by_hand=f"download census-income.data.gz and census-income.test.gz from {_UCI}census-income-mld/, rename them "
        "to census_income_1994_1995_train.csv.gz and census_income_1994_1995_test.csv.gz",
    ),
    DataSet(
        name="adult",
        title="Adult: 48,842 people, income and sex",
        folder="fairness",
        files=_ADULT_FILES,
        origin="Becker, Kohavi (1996), UCI Machine Learning Repository",
        licence="CC BY 4.0",
        by_hand=f"download adult.data and adult.test from {_UCI}adult/",
    ),
    DataSet(
        name="compas",
        title="COMPAS: 7,214 defendants, recidivism and sex",
        folder="fairness",
        files=(_COMPAS_FILE,),
        origin="Larson, Mattu, Kirchner, Angwin (2016), ProPublica",
        licence="ProPublica's terms",
        by_hand="download compas-scores-two-years.csv from https://github.com/propublica/compas-analysis",
    ),
    DataSet(
        name="credit",
        title="Default of credit card clients: 30,000 clients, default and sex",
        folder="fairness",
        files=(_CREDIT_FILE,),
        origin="Yeh (2016), UCI Machine Learning Repository",
        licence="CC BY 4.0",
        by_hand="get credit-default.csv.gz, the table of https://archive.ics.uci.edu/dataset/350 with education and "
        "marital status one-hot encoded",
    ),
    DataSet(
        name="tox21",
        title="Tox21: 7,831 molecules, 12 toxicity assays, labels partly missing",
        folder="tox21",
        files=(_TOX21_FILE,),
        origin="Tox21 Data Challenge (2014), MoleculeNet",
        licence="none stated",
        by_hand="get tox21.csv.gz with the columns smiles and the twelve assays of https://moleculenet.org/datasets-1",
    ),
    DataSet(
        name="mq2008",
        title="LETOR 4.0 MQ2008: 784 queries, 46 features, 5 folds",
        folder="mq2008",
        files=_MQ2008_FILES,
        origin="Qin, Liu (2013), Microsoft Research",
        licence="LETOR terms",
        by_hand="get MQ2008 of LETOR 4.0 from Microsoft Research, S1.txt to S5.txt, gzipped or not",
    ),
)
