"""Registry of data sets: files, checksums, mirrors, origin and licence."""

from __future__ import annotations

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data.entry import DataFile, DataSet
from stimulus_moo.lab.data.tabular_entries import TABULAR

__all__ = ["DATASETS", "DataFile", "DataSet", "dataset"]

_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_LAMBDARANK = "https://raw.githubusercontent.com/microsoft/LightGBM/v4.5.0/examples/lambdarank/"
_RF1_MIRRORS = (
    "https://www.openml.org/data/download/21230440/file173039e7713b.arff",
    "https://raw.githubusercontent.com/Zhendong-Wang/Probabilistic-Conformal-Prediction/"
    "e6f505beaf07f208cb496f85ac91fd37482677c6/data/rf1.arff",
)
_FASHION_MIRRORS = ("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",)


def _idx(mirrors: tuple[str, ...], stem: str, sha256: str, size: int, packed_sha256: str, packed_size: int) -> DataFile:
    name = f"{stem}.gz"
    return DataFile(name, sha256, size, tuple(mirror + name for mirror in mirrors), packed_sha256, packed_size)


def _lambdarank(name: str, sha256: str, size: int) -> DataFile:
    return DataFile(name, sha256, size, (_LAMBDARANK + name,))


_MNIST = (
    _idx(
        _MNIST_MIRRORS,
        "train-images-idx3-ubyte",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        47_040_016,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        9_912_422,
    ),
    _idx(
        _MNIST_MIRRORS,
        "train-labels-idx1-ubyte",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        60_008,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        28_881,
    ),
    _idx(
        _MNIST_MIRRORS,
        "t10k-images-idx3-ubyte",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        7_840_016,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        1_648_877,
    ),
    _idx(
        _MNIST_MIRRORS,
        "t10k-labels-idx1-ubyte",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        10_008,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        4_542,
    ),
)
_FASHION = (
    _idx(
        _FASHION_MIRRORS,
        "train-images-idx3-ubyte",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        47_040_016,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        26_421_880,
    ),
    _idx(
        _FASHION_MIRRORS,
        "train-labels-idx1-ubyte",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        60_008,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        29_515,
    ),
    _idx(
        _FASHION_MIRRORS,
        "t10k-images-idx3-ubyte",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        7_840_016,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        4_422_102,
    ),
    _idx(
        _FASHION_MIRRORS,
        "t10k-labels-idx1-ubyte",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        10_008,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        5_148,
    ),
)
_LTR = (
    _lambdarank("rank.train", "a0c7201c89120879c14a5059e091f441cbf2a29b8aaef363885ccb1a530448df", 2_479_271),
    _lambdarank("rank.train.query", "40cb5fef637229311cd30fab13cb7fb633b023e86a87ff04ec55db420143d6af", 580),
    _lambdarank("rank.test", "3b1219ce117a0a36d2f76c02de7e7831c1d79af0d40f5195c03178bbe26c824b", 649_930),
    _lambdarank("rank.test.query", "36dca82ba3bf99201bac3987b00a8fbf6fe5f563e9fa6d0da90e783710a32df4", 146),
)
_RF1 = DataFile("rf1.arff", "994f9e334811e040d2002e46d3ce06504e5d441249bf65448f53d6ea24b33cf0", 3_019_482, _RF1_MIRRORS)

DATASETS: dict[str, DataSet] = {
    entry.name: entry
    for entry in (
        DataSet(
            name="mnist",
            title="MNIST handwritten digits, the parts of MultiMNIST",
            folder="mnist",
            files=_MNIST,
            origin="LeCun, Cortes, Burges",
            licence="CC BY-SA 3.0",
            by_hand=f"download the four .gz files from {_MNIST_MIRRORS[0]}",
        ),
        DataSet(
            name="riverflow",
            title="RF1, Mississippi river flow: 64 inputs, 8 targets",
            folder="riverflow",
            files=(_RF1,),
            origin="Mulan multi-target regression collection (Spyromitros-Xioufis et al., 2016)",
            licence="none stated",
            by_hand="download rf1.arff of Mulan's multi-target collection, http://mulan.sourceforge.net/datasets-mtr.html",
        ),
        DataSet(
            name="ltr",
            title="LightGBM's lambdarank example: 201 + 50 queries, 300 features",
            folder="ltr",
            files=_LTR,
            origin="LightGBM, examples/lambdarank",
            licence="MIT",
            by_hand="get rank.train, rank.test and their .query files from LightGBM's examples/lambdarank",
        ),
        DataSet(
            name="celeba",
            title="CelebA: faces with 40 attributes",
            folder="celeba",
            files=(
                DataFile("list_attr_celeba.txt"),
                DataFile("list_eval_partition.txt"),
                DataFile("img_align_celeba"),
            ),
            origin="Liu, Luo, Wang, Tang (2015)",
            licence="non-commercial research only",
            by_hand="get img_align_celeba.zip (unpack it) and the two lists at "
            "http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        ),
        DataSet(
            name="fashion-mnist",
            title="Fashion-MNIST clothes, the parts of MultiFashion and Fashion+MNIST",
            folder="fashion-mnist",
            files=_FASHION,
            origin="Xiao, Rasul, Vollgraf (2017), Zalando",
            licence="MIT",
            by_hand=f"download the four .gz files from {_FASHION_MIRRORS[0]}",
        ),
        *TABULAR,
        DataSet(
            name="digits",
            title="scikit-learn's handwritten digits, overlapping in pairs",
            folder="",
            files=(),
            origin="Alpaydin, Kaynak (1998), bundled with scikit-learn",
            licence="CC BY 4.0",
            by_hand="nothing to get",
        ),
        DataSet(
            name="attributes",
            title="synthetic images with 40 attributes, the stand-in for CelebA",
            folder="",
            files=(),
            origin="drawn by stimulus_moo.lab.data.attributes",
            licence="MIT",
            by_hand="nothing to get",
        ),
    )
}


def dataset(name: str) -> DataSet:
    """Return the entry of the data set called ``name``.

    Raises:
        InvalidOption: there is none; the message lists the names.

    >>> dataset("mnist").licence
    'CC BY-SA 3.0'
    """
    if name not in DATASETS:
        raise InvalidOption(f"unknown data set {name!r}; known are {', '.join(DATASETS)}")
    return DATASETS[name]
