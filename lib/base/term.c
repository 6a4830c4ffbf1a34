/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/term.h>

#include <pf/error.h>
#include <pf/str.h>

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

int pf_term_width(FILE *stream)
{
    const char *const columns = getenv("COLUMNS");
    struct winsize size;
    int64_t n;

    if (columns && *columns) {
        if (pf_parse_i64(columns, &n) == 0 && n > 0 && n < 10000) {
            return (int)n;
        }
        pf_error_clear();
    }
    return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static bool names_utf8(const char *locale)
{
    for (; *locale; locale++) {
        if (strncasecmp(locale, "utf-8", 5) == 0 || strncasecmp(locale, "utf8", 4) == 0) {
            return true;
        }
    }
    return false;
}

bool pf_term_is_unicode(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    const char *const forbidden = getenv("NO_UNICODE");

    if (forbidden && *forbidden) {
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *const locale = getenv(names[i]);
        if (locale && *locale) {
            return names_utf8(locale);
        }
    }
    return false;
}

bool pf_term_has_colour(FILE *stream)
{
    const char *const forbidden = getenv("NO_COLOR"), *const term = getenv("TERM");

    return isatty(fileno(stream)) && !(forbidden && *forbidden) &&
           !(term && strcmp(term, "dumb") == 0);
}
