import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import DataError, load_tox21
from stimulus_moo.lab.data.tox21 import ASSAYS, HASHED, MORGAN

SMILES = ("CCO", "c1ccccc1", "CC(=O)O", "ClCCl", "C#N")


@pytest.fixture(autouse=True)
def without_rdkit(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def write(folder, rows: int = 30, smiles: str = "CCO", label: str = "1"):
    lines = [",".join(("mol_id", *ASSAYS, "smiles"))]  # MoleculeNet's order
    for i in range(rows):
        labels = ["" if (i + k) % 5 == 0 else f"{(i + k) % 2}" for k in range(12)]
        lines.append(",".join((f"T{i}", *labels, SMILES[i % 5])))
    lines.append(",".join(("last", label, *[""] * 11, smiles)))
    (folder / "tox21.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_split_types_labels_and_mask(tmp_path):
    data = load_tox21(folder=write(tmp_path, rows=29))
    assert (data.n_train, data.n_validation, data.n_test) == (24, 3, 3)
    inputs, labels, mask = (torch.cat(parts) for parts in zip(data.train, data.validation, data.test, strict=True))
    assert (inputs.shape, labels.shape, mask.shape) == ((30, 1024), (30, 12), (30, 12))
    assert (inputs.dtype, labels.dtype, mask.dtype) == (torch.float32, torch.float32, torch.bool)
    missing = sum((i + k) % 5 == 0 for i in range(29) for k in range(12)) + 11
    assert int((~mask).sum()) == missing
    assert not labels[~mask].any()
    assert int(labels.sum()) == 1 + sum((i + k) % 2 and (i + k) % 5 != 0 for i in range(29) for k in range(12))
    assert data.tasks == ASSAYS


def test_without_rdkit_equal_molecules_have_equal_grams_of_0_and_1(tmp_path):
    data = load_tox21(folder=write(tmp_path))
    assert data.encoding == HASHED
    inputs = torch.cat((data.train[0], data.validation[0], data.test[0]))
    assert set(inputs.unique().tolist()) == {0, 1}
    assert len(inputs.unique(dim=0)) == len(SMILES)
    assert inputs.sum(1).min() <= 6  # C, #, N, C#, #N, C#N
    upper = load_tox21(folder=write(tmp_path, smiles="C1CCCCC1"))
    rows = torch.cat((upper.train[0], upper.validation[0], upper.test[0]))
    assert len(rows.unique(dim=0)) == len(SMILES) + 1  # c and C are different


def fake_rdkit(monkeypatch):
    """A stand-in with the names that the loader uses: a molecule is its text, its bits are the letters."""
    names = ("rdkit", "rdkit.Chem", "rdkit.RDLogger", "rdkit.Chem.rdFingerprintGenerator")
    modules = {name: ModuleType(name) for name in names}
    modules["rdkit.Chem"].MolFromSmiles = lambda text, sanitize=True: None if "!" in text else text
    modules["rdkit.RDLogger"].DisableLog = modules["rdkit.RDLogger"].EnableLog = lambda name: None

    class Generator:
        def __init__(self, radius, fpSize):
            assert (radius, fpSize) == (2, 1024)

        def GetFingerprintAsNumPy(self, molecule):
            bits = np.zeros(1024, np.uint8)
            bits[[ord(letter) for letter in molecule]] = 1
            return bits

    modules["rdkit.Chem.rdFingerprintGenerator"].GetMorganGenerator = Generator
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


def test_with_rdkit_the_inputs_are_fingerprints_and_a_bad_molecule_is_named(tmp_path, monkeypatch):
    fake_rdkit(monkeypatch)
    data = load_tox21(folder=write(tmp_path))
    assert data.encoding == MORGAN
    assert set(data.train[0].sum(1).tolist()) <= {float(len(set(text))) for text in SMILES}
    with pytest.raises(
        DataError, match="line 32, column 'smiles': expected a molecule that rdkit can read, found 'C!'"
    ):
        load_tox21(folder=write(tmp_path, smiles="C!"))


def test_the_seed_decides_the_split(tmp_path):
    one, again, other = (load_tox21(folder=write(tmp_path), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.train[0], again.train[0])
    assert not torch.equal(one.train[0], other.train[0])


def test_bad_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"line 32, column 'NR-AR': expected 0, 1 or an empty field, found 2\.0"):
        load_tox21(folder=write(tmp_path, label="2"))
    with pytest.raises(DataError, match="expected at least 10 molecules to split, found 6"):
        load_tox21(folder=write(tmp_path, rows=5))
    (tmp_path / "tox21.csv").write_text("smiles,NR-AR\nC,1\n")
    with pytest.raises(DataError, match="line 1: expected the column 'NR-AR-LBD' in the header"):
        load_tox21(folder=tmp_path)
    with pytest.raises(DataError, match=r"tox21\.csv\.gz: expected in .*to get it, get tox21\.csv\.gz"):
        load_tox21(data=tmp_path)
    with pytest.raises(InvalidOption, match="seed"):
        load_tox21(seed=-1)


def test_tox21_itself(shared):
    shared("tox21")
    data = load_tox21()
    assert (data.n_train, data.n_validation, data.n_test) == (6265, 783, 783)
    mask = torch.cat((data.train[2], data.validation[2], data.test[2]))
    assert abs(float((~mask).double().mean()) - 0.17) < 0.005
    assert data.train[1].isfinite().all()
