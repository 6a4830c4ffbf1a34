# SPDX-License-Identifier: Apache-2.0
"""The Test Anything Protocol, and the worst figure of each kind that a script saw.

    from tap import ok, skip, figure, done
    ok(a == b, "a is b")                    figure("llama", "logits", 1.2e-6)       done()

done() prints one line "# figure KIND NAME VALUE" for the worst value of each (kind, name);
scripts/check-interop gathers these lines of all scripts in one table.
"""
import math
import sys

_n = _failed = 0
_worst = {}


def ok(holds, claim, *details):
    global _n, _failed
    _n += 1
    _failed += not holds
    print(f"{'' if holds else 'not '}ok {_n} - {claim}")
    if not holds:
        for line in details:
            print("#", line)
    sys.stdout.flush()
    return bool(holds)


def skip(claim, reason):
    global _n
    _n += 1
    print(f"ok {_n} - {claim} # SKIP {reason}", flush=True)


def figure(group, kind, value):
    """Remember the worst value of this kind in this group. Not a number is the worst of all."""
    value = math.inf if math.isnan(value) else value
    _worst[group, kind] = max(_worst.get((group, kind), 0.0), value)


def done():
    for (group, kind), value in _worst.items():
        print(f"# figure {kind} {value:.1e} {group}")
    print(f"1..{_n}")
    sys.exit(_failed > 0)
