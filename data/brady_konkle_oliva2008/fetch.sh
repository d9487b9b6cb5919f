#!/bin/sh
# Fetch the 2,400 object pictures of Brady, Konkle, Alvarez and Oliva (2008) into this folder as
# 0001.png ... 2400.png, the names DeepMind Lab expects.
#
# The authors publish no checksum, and none could be taken where this was written. So the sha256 of
# the first archive fetched is kept in archive.sha256, and every later one must have it; set
# STIMULI_SHA256 where you know what it should be.
set -eu

url=${STIMULI_URL:-https://bradylab.ucsd.edu/stimuli/ObjectsAll.zip}
python=${PYTHON:-python3}
n_expected=2400
folder=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
record=$folder/archive.sha256

fail() {
    echo "fetch.sh: $1" >&2
    exit 1
}

command -v curl >/dev/null || fail "curl is missing. Run: apt-get install curl"
"$python" -c "import PIL" 2>/dev/null ||
    fail "$python has no Pillow. Run: pip install pillow, or set PYTHON"

work=$(mktemp -d "$folder/.fetch.XXXXXX") # on the same disk, so that moving cannot fail halfway
trap 'rm -rf "$work"' EXIT

echo "Fetching $url"
curl --fail --location --retry 3 --output "$work/objects.zip" "$url" ||
    fail "$url could not be fetched. Look for 'ObjectsAll.zip' on the authors' pages
(bradylab.ucsd.edu/stimuli.html, olivalab.mit.edu/MM/stimuli.html) and set STIMULI_URL"

sha256=$(sha256sum "$work/objects.zip" | cut -d ' ' -f 1)
expected=${STIMULI_SHA256:-$(cat "$record" 2>/dev/null || true)}
if [ -n "$expected" ] && [ "$sha256" != "$expected" ]; then
    fail "what came from $url has sha256 $sha256, expected is $expected.
Nothing was changed. If the authors have a new archive, remove $record"
fi

# The members are read one by one: none is unpacked to a place that its name chooses.
"$python" - "$work" "$n_expected" <<'PYTHON' || fail "the pictures were not converted"
import io
import sys
import zipfile
from pathlib import Path, PurePosixPath

from PIL import Image

folder, n_expected = Path(sys.argv[1]), int(sys.argv[2])
largest = 10_000_000  # bytes of a picture; those of 2008 have a thousandth
try:
    archive = zipfile.ZipFile(folder / "objects.zip")
    paths = {PurePosixPath(info.filename): info for info in archive.infolist()}
    pictures = sorted(
        path
        for path in paths
        if path.suffix.lower() == ".jpg" and "__MACOSX" not in path.parts
    )
    if len(pictures) != n_expected:
        sys.exit(f"the archive holds {len(pictures)} pictures, not {n_expected}")
    for number, path in enumerate(pictures, start=1):
        if paths[path].file_size > largest:
            sys.exit(f"{path} in the archive is larger than a picture")
        content = archive.read(paths[path])  # its CRC is checked
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as picture:
            picture.convert("RGB").save(folder / f"{number:04}.png")
except Exception as error:  # a bad archive or picture raises about five kinds of errors
    sys.exit(f"not the archive of pictures: {error}")
PYTHON
mv "$work"/[0-9][0-9][0-9][0-9].png "$folder/"
echo "$sha256" > "$record"

echo "$n_expected pictures are in $folder, from an archive with sha256 $sha256"
[ -n "$expected" ] || echo "It had nothing to be compared with; later ones are compared with it."
echo "Set DATASET_PATH in DeepMind Lab's game_scripts/datasets/brady_konkle_oliva2008.lua to it."
