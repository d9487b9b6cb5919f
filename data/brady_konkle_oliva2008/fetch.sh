#!/bin/sh
# Fetch the 2,400 object pictures of Brady, Konkle, Alvarez and Oliva (2008) into this folder as
# 0001.png ... 2400.png, the names DeepMind Lab expects.
set -eu

url=${STIMULI_URL:-https://bradylab.ucsd.edu/stimuli/ObjectsAll.zip}
python=${PYTHON:-python3}
n_expected=2400
folder=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

fail() {
    echo "fetch.sh: $1" >&2
    exit 1
}

command -v curl >/dev/null || fail "curl is missing. Run: apt-get install curl"
command -v unzip >/dev/null || fail "unzip is missing. Run: apt-get install unzip"
"$python" -c "import PIL" 2>/dev/null ||
    fail "$python has no Pillow. Run: pip install pillow, or set PYTHON"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "Fetching $url"
curl --fail --location --retry 3 --output "$work/objects.zip" "$url" ||
    fail "$url could not be fetched. Look for 'ObjectsAll.zip' on the authors' pages
(bradylab.ucsd.edu/stimuli.html, olivalab.mit.edu/MM/stimuli.html) and set STIMULI_URL"
unzip -q "$work/objects.zip" -d "$work/unpacked" || fail "what came from $url is not a zip archive"

"$python" - "$work/unpacked" "$work" "$n_expected" <<'PYTHON' || fail "the pictures were not converted"
import sys
from pathlib import Path

from PIL import Image

unpacked, folder, n_expected = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
files = [file for file in unpacked.rglob("*") if file.suffix.lower() == ".jpg"]
files = sorted(file for file in files if "__MACOSX" not in file.parts)
if len(files) != n_expected:
    sys.exit(f"the archive holds {len(files)} pictures, not {n_expected}")
for number, file in enumerate(files, start=1):
    with Image.open(file) as picture:
        picture.convert("RGB").save(folder / f"{number:04}.png")
PYTHON
mv "$work"/[0-9][0-9][0-9][0-9].png "$folder/"

echo "$n_expected pictures are in $folder"
echo "Set DATASET_PATH in DeepMind Lab's game_scripts/datasets/brady_konkle_oliva2008.lua to it."
