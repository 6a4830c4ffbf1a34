/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors' own load_file, in Python, with torch where that is there, else numpy: each file of a
 * directory, then every page of every tensor touched. load_file maps the files; a touch that reads finds
 * the pages where they are, in the cache that all processes share, and one that writes makes them this
 * process's own, which is where pf has its bytes.
 */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char program[] =
    "import glob, sys, time\n"
    "try:\n"
    "    import safetensors\n"
    "    try:\n"
    "        import torch as lib\n"
    "        from safetensors.torch import load_file\n"
    "        flat = lambda t: t.view(-1).view(lib.uint8)\n"
    "    except ImportError:\n"
    "        import numpy as lib\n"
    "        from safetensors.numpy import load_file\n"
    "        flat = lambda t: t.reshape(-1).view(lib.uint8)\n"
    "except ImportError:\n"
    "    sys.exit(7)\n"
    "if len(sys.argv) == 1:\n"
    "    print('safetensors %s load_file, %s %s' % (\n"
    "        safetensors.__version__, lib.__name__, lib.__version__))\n"
    "    sys.exit(0)\n"
    "start = time.perf_counter()\n"
    "tensors = {}\n"
    "for path in sorted(glob.glob(glob.escape(sys.argv[2]) + '/*.safetensors')):\n"
    "    tensors.update(load_file(path))\n"
    "total = 0\n"
    "for t in tensors.values():\n"
    "    pages = flat(t)[::4096]\n"
    "    if sys.argv[1] == 'write':\n"
    "        pages += 1\n"
    "    else:\n"
    "        total += int(pages.sum())\n"
    "print(time.perf_counter() - start)\n";

/* That of PF_INTEROP_VENV, which has what is needed (scripts/check-interop), else python3. */
static int run(const struct bench_python *python, const char *dir, struct pf_str *text)
{
    const char *const venv = getenv("PF_INTEROP_VENV");
    char *const path = venv && *venv ? pf_asprintf("%s/bin/python", venv) : pf_strdup("python3");
    const char *const argv[] = {path, "-c", program, dir ? python->touch : NULL, dir, NULL};
    int err = path ? bench_run(argv, text) : PF_ENOMEM;

    if (err == PF_ENOTSUP) {
        pf_error_clear();
        err = pf_fail(PF_ENOTSUP,
                      "'%s' has no safetensors: PF_INTEROP_VENV names an environment "
                      "that has",
                      path);
    }
    pf_free(path);
    return err;
}

int bench_python_load(const struct bench_python *python, const char *dir, double *seconds_out)
{
    struct pf_str text;

    pf_str_init(&text);
    int err = run(python, dir, &text);
    if (!err) {
        text.text[strcspn(text.text, "\n")] = '\0';
        err = pf_parse_f64(text.text, seconds_out);
    }
    pf_str_release(&text);
    return err;
}

int bench_python_describe(const struct bench_python *python, char *text_out, size_t bytes)
{
    struct pf_str text;

    pf_str_init(&text);
    const int err = run(python, NULL, &text);
    if (!err) {
        (void)snprintf(text_out, bytes, "%.*s, %s touch", (int)strcspn(text.text, "\n"), text.text,
                       python->touch);
    }
    pf_str_release(&text);
    return err;
}
