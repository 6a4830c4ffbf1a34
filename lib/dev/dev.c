/* SPDX-License-Identifier: Apache-2.0 */
/* dev.c - the device table and its front end. */
#include "dev_internal.h"

#include <pf/error.h>

#include <stdio.h>
#include <string.h>

/* In order of preference. ops is NULL for a part that this build lacks. */
static const struct {
    const char *name;
    const struct pf_dev_ops *ops;
} devices[] = {
    {"cuda", NULL},
    {"cpu", &pf_dev_cpu},
    {"cuda-emu", NULL},
};

static const int n_devices = (int)(sizeof devices / sizeof devices[0]);

const char *pf_dev_known(int i, bool *built_out)
{
    if (i < 0 || i >= n_devices) {
        return NULL;
    }
    if (built_out) {
        *built_out = devices[i].ops != NULL;
    }
    return devices[i].name;
}

static int open_best(struct pf_dev **dev_out)
{
    for (int i = 0; i < n_devices; i++) {
        if (devices[i].ops && devices[i].ops->probe() == 0) {
            return devices[i].ops->open(dev_out);
        }
    }
    return pf_fail(PF_ENOTSUP, "no device can be used on this machine");
}

static int fail_unknown(const char *name)
{
    char here[64] = "", elsewhere[64] = "";

    for (int i = 0; i < n_devices; i++) {
        char *const list = devices[i].ops ? here : elsewhere;
        const size_t len = strlen(list);
        (void)snprintf(list + len, sizeof here - len, "%s%s", len ? ", " : "", devices[i].name);
    }
    return pf_fail(PF_EUSAGE, "unknown device '%s': this build has %s%s%s%s", name, here,
                   *elsewhere ? " (not " : "", elsewhere, *elsewhere ? ")" : "");
}

int pf_dev_open(const char *name, struct pf_dev **dev_out)
{
    if (!name || strcmp(name, "auto") == 0) {
        return open_best(dev_out);
    }
    for (int i = 0; i < n_devices; i++) {
        if (strcmp(name, devices[i].name) != 0) {
            continue;
        }
        if (!devices[i].ops) {
            return pf_fail(PF_ENOTSUP, "device '%s' is not in this build", name);
        }
        PF_TRY(devices[i].ops->probe());
        return devices[i].ops->open(dev_out);
    }
    return fail_unknown(name);
}

int pf_dev_close(struct pf_dev *dev)
{
    return dev ? dev->ops->close(dev) : 0;
}

const char *pf_dev_name(const struct pf_dev *dev)
{
    return dev->ops->name;
}

int pf_dev_mem_alloc(struct pf_dev *dev, size_t bytes, void **block_out)
{
    if (bytes == 0) {
        *block_out = NULL;
        return 0;
    }
    return dev->ops->mem_alloc(dev, bytes, block_out);
}

int pf_dev_mem_free(struct pf_dev *dev, void *block)
{
    return block ? dev->ops->mem_free(dev, block) : 0;
}

int pf_dev_mem_copy(struct pf_dev *dev, void *dst, const void *src, size_t bytes,
                    enum pf_dev_copy_kind kind)
{
    if (bytes == 0) {
        return 0;
    }
    if (!dst || !src) {
        return pf_fail(PF_EINVAL, "copy of %zu bytes without source or destination", bytes);
    }
    return dev->ops->mem_copy(dev, dst, src, bytes, kind);
}

int pf_dev_mem_set(struct pf_dev *dev, void *dst, int byte, size_t bytes)
{
    if (bytes == 0) {
        return 0;
    }
    if (!dst) {
        return pf_fail(PF_EINVAL, "fill of %zu bytes without destination", bytes);
    }
    return dev->ops->mem_set(dev, dst, byte, bytes);
}

int pf_dev_stream_sync(struct pf_dev *dev)
{
    return dev->ops->stream_sync(dev);
}
