#!/usr/bin/env bash
# Measures training steps on one GPU in at most 9 minutes, and says whether the bars are met:
# ViT-B/16 at 45 % MFU, ViT-L/16 at 50 % (one H200). From the repository's root:
#   bash experiments/speed/gpu.sh        one GPU
#   bash experiments/speed/gpu.sh tpu    the TPUs of one host, in at most 30 minutes
#   bash experiments/speed/gpu.sh cpu    tiny models, which shows in minutes that every line works
# It needs no network and no data. Each part has a time limit and writes its own JSON and log file
# to $OUT, so that a part that fails does not lose the others. Parts are in order of importance.
# PyTorch, timm and pytest are used if they are installed.
set -uo pipefail
cd "$(dirname "$0")/../.."

device=${1:-gpu}
case $device in
  gpu)
    # Not --batch_size=auto: its search compiles eight programs a model.
    models='ViT-B/16=512 ViT-L/16=256 ViT-S/16=1024 ViT-H/14=128'
    compared='ViT-B/16=512 ViT-L/16=256'
    in_pytorch='ViT-B/16=256 ViT-L/16=128' # both fit beside each other
    batches='ViT-B/16=256 ViT-L/16=128 ViT-B/16=1024'
    limit=525 dtype=bfloat16 image_size=224 rounds=3 steps=10
    export JAX_PLATFORMS=cuda CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
    ;;
  tpu)
    models='ViT-B/16=128 ViT-L/16=64 ViT-S/16=128 ViT-H/14=16'
    compared='ViT-S/16=128 ViT-B/16=128 ViT-L/16=32'
    in_pytorch=''
    batches='ViT-B/16=256 ViT-L/16=32'
    limit=1780 dtype=bfloat16 image_size=224 rounds=3 steps=10
    export JAX_PLATFORMS=tpu
    ;;
  cpu)
    models='ViT-Nano/4=4 ViT-Mini/4=4'
    compared='ViT-Nano/4=4'
    in_pytorch='ViT-Nano/4=4'
    batches='ViT-Nano/4=8'
    limit=525 dtype=float32 image_size=8 rounds=1 steps=1
    export JAX_PLATFORMS=cpu
    ;;
  *)
    echo "usage: $0 [gpu|tpu|cpu]" >&2
    exit 2
    ;;
esac
MODELS=${MODELS:-$models} # NAME=IMAGES, images of a step on each device
COMPARED=${COMPARED:-$compared}
IN_PYTORCH=${IN_PYTORCH-$in_pytorch}
BATCHES=${BATCHES:-$batches}
LIMIT=${LIMIT:-$limit} # seconds for everything
OUT=${OUT:-experiments/speed/$device}
if [[ -z ${PYTHON:-} ]]; then
  PYTHON=python3
  [[ -x .venv/bin/python ]] && PYTHON=.venv/bin/python
fi
mkdir -p "$OUT"
if [[ -n $(ls -A "$OUT") ]]; then
  echo "the folder $OUT is not empty; move it away, or set OUT to another one" >&2
  exit 2
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} COLUMNS=120
# Later parts take the steps of earlier ones from here.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
export JAX_COMPILATION_CACHE_DIR=$cache

part() { # name, limit in seconds, command
  local name=$1 seconds=$2 begin=$SECONDS code=0
  shift 2
  local left=$((LIMIT - SECONDS - 10))
  ((seconds > left)) && seconds=$left
  if ((seconds < 10)); then
    echo "$name: left out, no time" | tee -a "$OUT/parts.txt"
    return
  fi
  timeout --kill-after=5 "$seconds" "$@" >"$OUT/$name.log" 2>&1 || code=$?
  local outcome="exit code $code"
  ((code == 0)) && outcome='done'
  ((code == 124 || code == 137)) && outcome="ended at its limit"
  echo "$name: $outcome, $((SECONDS - begin)) s" | tee -a "$OUT/parts.txt"
  grep -v '^$' "$OUT/$name.log" | tail -n "$((code ? 5 : 12))"
}

bench() { # name of the part, limit, NAME=IMAGES, more arguments
  local name=$1 seconds=$2 model=${3%=*} batch_size=$((${3#*=} * devices))
  name+="-${model//\//-}-$batch_size"
  shift 3
  part "$name" "$seconds" "$PYTHON" -m vit_jax bench step "--model=$model" \
    "--batch_size=$batch_size" "--image_size=$image_size" "--dtype=$dtype" "--rounds=$rounds" \
    "--steps=$steps" "--output=$OUT/$name.json" "$@"
}

script() { # name of the part, limit, NAME=IMAGES, script for one device, more arguments
  local name=$1 seconds=$2 model=${3%=*} batch_size=${3#*=} file=$4
  shift 4
  part "$name-${model//\//-}-$batch_size" "$seconds" "$PYTHON" -m "experiments.speed.$file" "--model=$model" \
    "--batch_size=$batch_size" "--image_size=$image_size" "--dtype=$dtype" "--rounds=$rounds" "$@"
}

has() { # part, modules that it needs
  local part=$1 module
  shift
  for module; do
    "$PYTHON" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$module') is None)" && continue
    echo "$part: left out, $module is not installed" | tee -a "$OUT/parts.txt"
    return 1
  done
}

each=150
[[ $device == tpu ]] && each=400

part devices 60 "$PYTHON" -c "
import jax
print(jax.__version__, jax.devices())
assert jax.default_backend() == '$device', jax.default_backend()
print(jax.device_count())"
if ! grep -q '^devices: done' "$OUT/parts.txt"; then
  echo "JAX finds no $device. Install jax[cuda13] or jax[tpu]." >&2
  exit 1
fi
devices=$(tail -n 1 "$OUT/devices.log")

# 1. Speed and MFU as a user gets them; the first model also writes a profile.
profile="--profile=$OUT/profile"
for model in $MODELS; do
  bench model "$each" "$model" ${profile:+"$profile"}
  profile=''
done

# 2. The attention kernels of this device.
read -r first _ <<<"$COMPARED"
attention=$first
[[ $device == tpu ]] && attention=$COMPARED
for model in $attention; do script attention "$each" "$model" attention_kernels; done

# 3. The rules for cuDNN against its compiler.
if [[ $device != tpu ]] && has cudnn_rules pytest; then
  marker=gpu
  [[ $device == cpu ]] && marker='not gpu and not slow'
  part cudnn_rules 90 "$PYTHON" -m pytest -q -n0 -p no:cacheprovider -m "$marker" tests/models/test_attention.py
fi

# 4. Unrolled against scanned. One of them is what auto chose in part 1.
for model in $COMPARED; do
  bench scanned "$each" "$model" --config.model.scan=true
  bench unrolled "$each" "$model" --config.model.scan=false
done

# 5. The same step in PyTorch, in turn.
if [[ $IN_PYTORCH ]] && has timm torch timm; then
  for model in $IN_PYTORCH; do
    script timm 120 "$model" torch_step --compiled "--steps=$steps" "--output=$OUT/timm-${model//[\/=]/-}.json"
  done
fi

# 6. Other batch sizes.
for model in $BATCHES; do bench batch 60 "$model"; done

"$PYTHON" - "$OUT" "$device" <<'PYTHON' | tee "$OUT/summary.txt"
import collections
import gzip
import json
import pathlib
import sys

BARS = {"ViT-B/16": 0.45, "ViT-L/16": 0.50}
folder, device = pathlib.Path(sys.argv[1]), sys.argv[2]
rows = []
for path in sorted(folder.glob("*-*.json")):
    rows += [{"part": path.stem, **row} for row in json.loads(path.read_text())["rows"]]
(folder / "summary.json").write_text(json.dumps(rows, indent=2) + "\n")

print(f"\n{'part':32}{'step of':32}{'images/s':>10}{'ms':>9}{'MFU':>7}{'compile s':>11}{'MiB':>10}")
for row in rows:
    print(f"{row['part']:32}{row['name']:32}", end="")
    mfu = "-" if row["mfu"] is None else f"{row['mfu']:.1%}"
    memory = "-" if row["peak_memory_mb"] is None else f"{row['peak_memory_mb']:,.0f}"
    print(f"{row['images_per_second']:>10,.0f}{row['step_ms']:>9.1f}{mfu:>7}{row['compile_s']:>11.1f}{memory:>10}")

print()
for model, bar in BARS.items():
    found = [row for row in rows if row["model"] == model and row["name"].startswith("vit_jax") and row["mfu"]]
    default = [row for row in found if row["part"].startswith("model-")]
    if not default:
        print(f"{model}: not measured")
        continue
    mfu, best = default[0]["mfu"], max(found, key=lambda row: row["mfu"])
    verdict = "" if device == "tpu" else f"; bar {bar:.0%}: {'met' if mfu >= bar else 'MISSED'}"
    print(f"{model}: {mfu:.1%} MFU{verdict}; best {best['mfu']:.1%} ({best['part']}, {best['name']})")

# Time of each kind of kernel in the profile of two steps.
for path in folder.glob("profile/**/*.trace.json.gz"):
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    total = collections.Counter()
    for event in events:
        on_device = processes.get(event.get("pid"), "").startswith("/device:")
        if event.get("ph") == "X" and (on_device or device == "cpu"):
            total[event["name"].rstrip("0123456789").rstrip("._")] += event["dur"] / 2e3
    print(f"\nlargest parts of a step's profile, ms ({path})")
    for name, ms in total.most_common(20):
        print(f"{ms:10.2f}  {name[:100]}")
PYTHON
echo "$SECONDS s; results in $OUT"
