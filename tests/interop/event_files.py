# SPDX-License-Identifier: Apache-2.0
"""Event files, read by TensorBoard: every scalar of metrics.jsonl is there, of a run and of one that was
resumed from an earlier step, which takes back what the first said of later ones."""
import json
import struct

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pf
from tap import done, ok

KEYS = ("loss", "grad_norm", "learning_rate", "tokens_per_second", "mfu")


def as_float(x):
    """A double as an event file stores it."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def scalars(run):
    """Scalars of the run's event files as {tag: [(step, value)]}."""
    reader = EventAccumulator(str(run.out / "tb"), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def expected(run):
    lines = [json.loads(line) for line in open(run.out / "metrics.jsonl")]
    want = {key: [(x["step"], as_float(x[key])) for x in lines if "event" not in x] for key in KEYS}
    want["eval_loss"] = [(x["step"], as_float(x["loss"])) for x in lines if x.get("event") == "eval"]
    return want


def train(**keys):
    return pf.train(model=json.loads(pf.family_config("qwen3").read_text()), from_scratch=True,
                    input_dir="synthetic:markov?vocab=64&order=1&seed=1", max_seq_length=16,
                    eval_input_dir="synthetic:markov?vocab=64&order=1&stream=1&tokens=256",
                    eval_steps=3, per_device_train_batch_size=2, max_steps=8, save_steps=4,
                    learning_rate=1e-2, **keys)


run = train()
if ok(run.status == 0, "a run of eight steps", run.log):
    got = scalars(run)
    ok(got == expected(run) and len(got["loss"]) == 8 and len(got["eval_loss"]) == 3,
       f"TensorBoard reads the scalars of metrics.jsonl: {', '.join(sorted(got))}", got)
    first = dict(got["loss"])
    again = train(out=run.out, resume_from_checkpoint=str(run.out / "checkpoint-000004"))
    if ok(again.status == 0, "a run that goes back to step 4", again.log):
        got = scalars(again)
        ok(len(list((run.out / "tb").iterdir())) == 2, "has a second file")
        ok(got == expected(again) and [step for step, _ in got["loss"]] == list(range(1, 9)),
           "each step is there once, as the resumed run says it", got)
        ok(dict(got["loss"]) == first, "with the same losses")
done()
