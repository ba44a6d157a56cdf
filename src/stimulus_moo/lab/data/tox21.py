"""Tox21: twelve toxicity assays of 7,831 molecules, one binary task each, with missing labels."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stimulus_moo.lab.data.dependencies import optional
from stimulus_moo.lab.data.encoding import split_rows
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.registered import verified_files
from stimulus_moo.lab.data.tables import TableFormat, read_table, row_error
from stimulus_moo.lab.data.task_data import TaskData
from stimulus_moo.options import seed_number

#: The twelve assays, seven of nuclear receptors and five of stress response.
ASSAYS = (
    *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma"),
    *("SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
)
BITS = 1024
MORGAN = "Morgan fingerprints of radius 2"
HASHED = "hashed character n-grams of the SMILES"
_RADIUS = 2
_GRAMS = (1, 4)
_FEWEST_ROWS = 10  # 80/10/10 needs a row in each split
_FORMAT = TableFormat(("smiles", *ASSAYS), numeric=frozenset(ASSAYS), gaps=frozenset(ASSAYS), header=True)


def load_tox21(
    *,
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> TaskData:
    """Load Tox21; the rows are split at random: 80% training, 10% validation, 10% test.

    The inputs are 1024 columns of 0 and 1. If rdkit is installed, they are Morgan fingerprints of radius 2; otherwise,
    they say which strings of 1 to 4 characters occur in the SMILES, hashed to 1024 columns by scikit-learn. The field
    ``encoding`` of the result says which: results with the one are not comparable with those of the other.

    Args:
        seed: seed of the split.
        folder: a folder with a file ``tox21.csv``, gzipped or not, with a header, the column ``smiles`` and the twelve
            assays, in any order. Default: the registered file, with a verified checksum.
        data: data folder (``--data``), see ``folders.data_folders``.
        download: unused as long as no mirror is registered; then whether the file may be downloaded.

    Returns:
        ``train``, ``validation`` and ``test`` hold inputs (float32, n x 1024), labels (float32 of 0 and 1, n x 12, 0
        where missing) and a mask (bool, n x 12), True where the label is known.

    Raises:
        DataError: the file is missing, damaged or in another format, or a molecule cannot be read; the message names
            the line.
        InvalidOption: the seed is out of range.
        MissingDependency: pandas or scikit-learn is not installed.
    """
    seed = seed_number(seed)
    path = verified_files("tox21", data, folder=folder, download=download)[0]
    table = read_table(path, _FORMAT)
    if len(table) < _FEWEST_ROWS:
        raise DataError(f"{path}: expected at least {_FEWEST_ROWS} molecules to split, found {len(table)}")
    values = table[list(ASSAYS)].to_numpy()
    mask = ~np.isnan(values)
    labels = np.where(mask, values, 0.0).astype(np.float32)
    _check_labels(path, labels)
    smiles = table["smiles"].astype("str").tolist()
    chemistry = importlib.util.find_spec("rdkit") is not None
    inputs = _fingerprints(path, smiles) if chemistry else _hashed_grams(smiles)
    tensors = [torch.from_numpy(array) for array in (inputs, labels, mask)]
    train, validation, test = (
        tuple(tensor[torch.from_numpy(rows)] for tensor in tensors)
        for rows in split_rows(len(table), validation=0.1, test=0.1, seed=seed)
    )
    encoding = MORGAN if chemistry else HASHED
    return TaskData("tox21", train, test, ASSAYS, False, f"{path}, split with seed {seed}", validation, encoding)


def _check_labels(path: Path, labels: NDArray[np.float32]) -> None:
    strange = (labels != 0) & (labels != 1)
    if strange.any():
        row, column = (int(place) for place in np.argwhere(strange)[0])
        raise row_error(path, _FORMAT, row, ASSAYS[column], "0, 1 or an empty field", float(labels[row, column]))


def _hashed_grams(smiles: Sequence[str]) -> NDArray[np.float32]:
    hasher = optional("sklearn.feature_extraction.text").HashingVectorizer(
        n_features=BITS,
        analyzer="char",
        ngram_range=_GRAMS,
        lowercase=False,  # in SMILES, c and C are different atoms
        alternate_sign=False,
        binary=True,
        norm=None,
        dtype=np.float32,
    )
    dense: NDArray[np.float32] = hasher.transform(smiles).toarray()
    return dense


def _fingerprints(path: Path, smiles: Sequence[str]) -> NDArray[np.float32]:
    chemistry: Any = optional("rdkit.Chem")
    log: Any = optional("rdkit.RDLogger")
    generator = optional("rdkit.Chem.rdFingerprintGenerator").GetMorganGenerator(radius=_RADIUS, fpSize=BITS)
    result = np.empty((len(smiles), BITS), np.float32)
    log.DisableLog("rdApp.*")  # rdkit writes a line to stderr for every unusual molecule
    try:
        for row, text in enumerate(smiles):
            molecule = _molecule(chemistry, text)
            if molecule is None:
                raise row_error(path, _FORMAT, row, "smiles", "a molecule that rdkit can read", text)
            result[row] = generator.GetFingerprintAsNumPy(molecule)
    finally:
        log.EnableLog("rdApp.*")
    return result


def _molecule(chemistry: Any, text: str) -> Any:
    """Return rdkit's molecule, or None. A few molecules, with metals, have more bonds than rdkit's check allows."""
    molecule = chemistry.MolFromSmiles(text)
    if molecule is not None:
        return molecule
    molecule = chemistry.MolFromSmiles(text, sanitize=False)
    if molecule is not None:
        molecule.UpdatePropertyCache(strict=False)
        steps = chemistry.SanitizeFlags
        chemistry.SanitizeMol(molecule, steps.SANITIZE_ALL ^ steps.SANITIZE_PROPERTIES)
    return molecule
