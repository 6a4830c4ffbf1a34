# SPDX-License-Identifier: Apache-2.0
"""Running pf-train as a user does: a config, a run, the files that it leaves.

PF_ROOT is the repository, PF_BIN the directory of the programs (both set by scripts/check-interop).
Everything is written below scratch(), which is removed at exit.
"""
import atexit
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file

ROOT = Path(os.environ.get("PF_ROOT", Path(__file__).resolve().parents[3]))
BIN = Path(os.environ.get("PF_BIN", ROOT / "bin"))
FAMILIES = ["gpt2", "llama", "llama-tied", "qwen2", "qwen3", "ernie4_5"]

_scratch = None
_n_names = 0


def scratch(name="x"):
    """A path, not yet there, whose last part begins with the name."""
    global _scratch, _n_names
    if _scratch is None:
        _scratch = Path(tempfile.mkdtemp(prefix="pf-interop-"))
        atexit.register(shutil.rmtree, _scratch, ignore_errors=True)
    _n_names += 1
    return _scratch / f"{re.sub('[^A-Za-z0-9_]+', '-', name)}-{_n_names}"


def family_config(folder):
    """config.json of a fixture."""
    return ROOT / "tests/fixtures/hf" / folder / "config.json"


def write_batches(ids, labels=None):
    """A file of fixed batches [steps, B, S] (or [B, S], one step) for input_dir."""
    path = scratch("batch").with_suffix(".safetensors")
    labels = ids if labels is None else labels
    save_file({"input_ids": ids.contiguous(), "labels": labels.contiguous().clone()}, path)
    return path


class Run:
    """A run of pf-train that has ended."""

    def __init__(self, out, status, log):
        self.out, self.status, self.log = out, status, log

    def steps(self):
        """Lines of metrics.jsonl that are steps, in order."""
        lines = [json.loads(line) for line in open(self.out / "metrics.jsonl")]
        return [line for line in lines if "event" not in line]

    def tensors(self, path):
        return load_file(self.out / path)

    def dump(self, what, step=1):
        return self.tensors(f"dump/step-{step:06d}/{what}.safetensors")

    def last_line(self):
        lines = self.log.strip().splitlines()
        return lines[-1] if lines else ""


def train(ranks=1, out=None, **keys):
    """Run pf-train with these keys; None leaves a key out. One thread, every step logged, nothing
    saved unless asked for."""
    out = out or scratch("run")
    base = dict(logging_steps=1, save_steps=-1, threads=1, output_dir=str(out))
    config = scratch("config").with_suffix(".json")
    keys = {k: str(v) if isinstance(v, Path) else v for k, v in keys.items() if v is not None}
    config.write_text(json.dumps(base | keys, indent=1))
    launch = [ROOT / "scripts/mpirun-here", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run([*launch, BIN / "pf-train", "--no-progress", config], cwd=config.parent,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    return Run(out, done.returncode, done.stdout)


def one_step(model, ids, labels=None, **keys):
    """One step on one batch at rate 0: its logits and gradients are dumped, and what is exported is
    what was loaded."""
    wanted = dict(model_name_or_path=model, input_dir=write_batches(ids, labels),
                  max_seq_length=ids.shape[-1], per_device_train_batch_size=ids.shape[-2],
                  max_steps=1, learning_rate=0, dump_steps=[1], dump=["logits", "grads"])
    return train(**(wanted | keys))
