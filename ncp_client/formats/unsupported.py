"""Files that are not read: what they are by their first bytes, and what to do with them."""

from collections.abc import Mapping

from ncp_client.formats.errors import UnreadableFile

SAVE = "save a plain numeric array with numpy.save(path, array)"
SAVE_FROM = 'read it and save the array: numpy.save("tensor.npy", {})'
SEND_RAW = "send it with curl -X POST -T tensor.npy"
# What a file begins with: its kind, and the remedy.
KNOWN_FILES: Mapping[bytes, tuple[str, str]] = {
    b"MATLAB 5.0 MAT-file": ("a MATLAB .mat file", SAVE_FROM.format('scipy.io.loadmat("file.mat")["X"]')),
    b"MATLAB 7.3 MAT-file": (
        "a MATLAB .mat file of version 7.3, which is HDF5",
        SAVE_FROM.format('h5py.File("file.mat")["X"][()].T'),
    ),
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file", SAVE_FROM.format('h5py.File("file.h5")["X"][()]')),
    b"CDF": ("a NetCDF file", SAVE_FROM.format('xarray.open_dataset("file.nc")["X"].values')),
    b"\x1f\x8b": ("compressed with gzip", "unpack it first, with gunzip"),
    b"BZh": ("compressed with bzip2", "unpack it first, with bunzip2"),
    b"\xfd7zXZ": ("compressed with xz", "unpack it first, with unxz"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "unpack it first, with unzstd"),
    b"PK": ("a zip or .npz archive", SAVE_FROM.format('numpy.load("file.npz")["X"]') + "; unpack other archives first"),
    b"%93NUMPY": ("encoded for a form", SEND_RAW),
    b"II*\0": ("a TIFF image", SAVE_FROM.format('tifffile.imread("file.tif")')),
    b"MM\0*": ("a TIFF image", SAVE_FROM.format('tifffile.imread("file.tif")')),
    b"PAR1": ("a Parquet table", SAVE_FROM.format('pandas.read_parquet("file").to_numpy()')),
    **{bytes([0x80, version]): ("a pickle", SAVE) for version in range(2, 6)},
}


def refusal(start: bytes) -> UnreadableFile:
    """Return the exception for a file that no format recognises by its first bytes."""
    if not start:
        return UnreadableFile("is empty", f"save the array again, then {SEND_RAW}")
    for magic, (kind, remedy) in KNOWN_FILES.items():
        if start.startswith(magic):
            return UnreadableFile(f"is {kind}, not a .npy file", remedy)
    if _is_text(start):
        return _refusal_of_text(start)
    return UnreadableFile("is not a .npy file: it does not begin with \\x93NUMPY", SAVE)


def _is_text(start: bytes) -> bool:
    """Return whether it has no control characters and is nearly all ASCII: a table may be in any encoding."""
    if any(byte < 32 and byte not in b"\t\n\r\f" for byte in start):
        return False
    return sum(byte > 126 for byte in start) <= len(start) / 10


def _refusal_of_text(start: bytes) -> UnreadableFile:
    line = start.split(b"\n")[0].strip()
    if line == start.strip() and (line.startswith((b"@", b"file=")) or line.endswith(b".npy")):
        return UnreadableFile("is the name of a file, not a .npy file", SEND_RAW)
    if line.startswith((b"{", b"[")):
        remedy = SAVE_FROM.format('numpy.array(json.load(open("file.json")))')
        return UnreadableFile("is JSON, not a .npy file", remedy)
    read = 'numpy.loadtxt("file.csv", delimiter=",").reshape(lengths)'
    return UnreadableFile("is text, such as CSV, not a .npy file", SAVE_FROM.format(read))
