/* SPDX-License-Identifier: Apache-2.0 */
/* Members of an object by name: absent or null, of the wrong type, or needed; and unknown ones. */
#include "json_internal.h"

#include <pf/str.h>
#include <pf/error.h>

#include <string.h>

/* The member if it is there and not null. Asking a non-object for members is refused. */
static int find_member(const struct pf_json *object, const char *key,
                       const struct pf_json **member_out)
{
    PF_TRY(pf_json_expect(object, PF_JSON_OBJECT));
    const struct pf_json *const member = pf_json_get(object, key);
    *member_out = member && pf_json_type(member) != PF_JSON_NULL ? member : NULL;
    return 0;
}

int pf_json_i64(const struct pf_json *object, const char *key, int64_t by_default, int64_t *out)
{
    const struct pf_json *member;
    int64_t value = by_default;

    PF_TRY(find_member(object, key, &member));
    if (member) {
        PF_TRY(pf_json_as_i64(member, &value));
    }
    *out = value;
    return 0;
}

int pf_json_int(const struct pf_json *object, const char *key, int by_default, int *out)
{
    const struct pf_json *member;
    int64_t value = by_default;

    PF_TRY(find_member(object, key, &member));
    if (member) {
        PF_TRY(pf_json_as_i64(member, &value));
        if (value != (int)value) {
            return pf_base_json_must_be_integer(member);
        }
    }
    *out = (int)value;
    return 0;
}

int pf_json_f64(const struct pf_json *object, const char *key, double by_default, double *out)
{
    const struct pf_json *member;
    double value = by_default;

    PF_TRY(find_member(object, key, &member));
    if (member) {
        PF_TRY(pf_json_as_f64(member, &value));
    }
    *out = value;
    return 0;
}

int pf_json_bool(const struct pf_json *object, const char *key, bool by_default, bool *out)
{
    const struct pf_json *member;
    bool value = by_default;

    PF_TRY(find_member(object, key, &member));
    if (member) {
        PF_TRY(pf_json_as_bool(member, &value));
    }
    *out = value;
    return 0;
}

int pf_json_string(const struct pf_json *object, const char *key, const char *by_default,
                   const char **out)
{
    const struct pf_json *member;
    const char *value = by_default;

    PF_TRY(find_member(object, key, &member));
    if (member) {
        PF_TRY(pf_json_as_string(member, &value));
    }
    *out = value;
    return 0;
}

int pf_json_need(const struct pf_json *object, const char *key, const struct pf_json **child_out)
{
    const struct pf_json *member;

    PF_TRY(find_member(object, key, &member));
    if (!member) {
        return pf_json_fail(object, "has no '%s'", key);
    }
    *child_out = member;
    return 0;
}

int pf_json_need_i64(const struct pf_json *object, const char *key, int64_t *out)
{
    const struct pf_json *member;

    PF_TRY(pf_json_need(object, key, &member));
    return pf_json_as_i64(member, out);
}

int pf_json_need_f64(const struct pf_json *object, const char *key, double *out)
{
    const struct pf_json *member;

    PF_TRY(pf_json_need(object, key, &member));
    return pf_json_as_f64(member, out);
}

int pf_json_need_bool(const struct pf_json *object, const char *key, bool *out)
{
    const struct pf_json *member;

    PF_TRY(pf_json_need(object, key, &member));
    return pf_json_as_bool(member, out);
}

int pf_json_need_string(const struct pf_json *object, const char *key, const char **out)
{
    const struct pf_json *member;

    PF_TRY(pf_json_need(object, key, &member));
    return pf_json_as_string(member, out);
}

int pf_json_refuse_unknown(const struct pf_json *object, const char *const *known, size_t n)
{
    PF_TRY(pf_json_expect(object, PF_JSON_OBJECT));
    for (size_t i = 0; i < pf_json_n(object); i++) {
        const char *const key = pf_json_key(object, i);
        size_t k = 0;
        while (k < n && strcmp(known[k], key) != 0) {
            k++;
        }
        if (k < n) {
            continue;
        }
        const char *const nearest = pf_nearest(key, known, n);
        return nearest ? pf_json_fail(pf_json_child(object, i), "is not known; did you mean '%s'?",
                                      nearest)
                       : pf_json_fail(pf_json_child(object, i), "is not known");
    }
    return 0;
}
